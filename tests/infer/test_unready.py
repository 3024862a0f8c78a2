"""Modules whose weights or code cannot be looked at are refused in words of what to do about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from outsize.errors import ModelError
from outsize.infer.foreign import look_at


def _layer() -> nn.Conv2d:
    return nn.Conv2d(4, 3, 3, padding=1)


def _of_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.Sequential(_layer())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: torch.jit.script(_layer()),
            "found RecursiveScriptModule, needed the nn.Module that it was made",
        ),
        (
            lambda: torch.jit.trace(_layer(), torch.zeros(1, 4, 8, 8)),
            "needed the nn.Module that it was made from",
        ),
        (lambda: nn.LazyConv2d(3, 3, padding=1), "'weight' without a shape.*call it once on a picture"),
        (lambda: _layer().to("meta"), "hold no numbers: found 'weight' on the device meta"),
        (_of_inference, "made under torch.inference_mode: found '0.weight'"),
    ],
)
def test_they_are_refused_in_words(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        look_at(make(), 4)


def test_inside_of_inference_mode_they_are_as_others() -> None:
    with torch.inference_mode():
        assert look_at(nn.Sequential(_layer()), 4).num_logits == 3
