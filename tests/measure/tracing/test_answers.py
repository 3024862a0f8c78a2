"""What a model answers with, seen on shapes alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outsize.errors import TraceError
from outsize.measure.tracing.answers import AnswerLeaf, answer_on_shapes


class Several(nn.Module):
    """Returns all kinds of things."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1).double()

    def forward(self, images: Tensor) -> object:
        """Return a dict of them."""
        made = self.conv(images)
        return {"shares": made.softmax(-3), "more": [made.sigmoid(), None], "size": 7}


def test_every_leaf_has_name_shape_and_last_operation() -> None:
    assert answer_on_shapes(Several(), (2, 2, 8, 12)) == (
        AnswerLeaf("['shares']", (2, 3, 8, 12), "softmax", 1, "float64"),
        AnswerLeaf("['more'][0]", (2, 3, 8, 12), "sigmoid", None, "float64"),
        AnswerLeaf("['more'][1]", (), "", None, "NoneType"),
        AnswerLeaf("['size']", (), "", None, "int"),
    )
    (only,) = answer_on_shapes(nn.Identity(), (1, 2, 8, 8))
    assert (only.name, only.made_by) == ("", "")


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_last_operation_is_seen_without_gradients(context: Callable[[], Any]) -> None:
    class Squashed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with context():
                return torch.sigmoid_(x + 1).float().clone()

    (found,) = answer_on_shapes(Squashed(), (1, 2, 8, 8))
    assert found.made_by == "sigmoid"


def test_nothing_is_computed_and_the_model_is_left_alone() -> None:
    model = nn.Conv2d(2, 3, 1).requires_grad_(False).train()
    (found,) = answer_on_shapes(model, (1, 2, 1 << 20, 1 << 20))  # 8 TiB
    assert found.made_by == "convolution"
    assert model.training
    assert not model.weight.requires_grad


def test_what_is_raised_names_the_layer() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sequential(nn.Conv2d(3, 4, 1)))
    with pytest.raises(TraceError, match=r"a batch of 1x2x8x8: found RuntimeError: .* in layer 1\.0, needed"):
        answer_on_shapes(model, (1, 2, 8, 8))


class ByPlanes(nn.Module):
    """A view over samples and channels."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the pictures."""
        return images.view(-1, *images.shape[-2:]).view(images.shape)


def test_a_layout_can_be_in_the_way() -> None:
    with pytest.raises(TraceError, match="view"):
        answer_on_shapes(ByPlanes(), (2, 2, 8, 8))
    assert len(answer_on_shapes(ByPlanes(), (2, 2, 8, 8), channels_last=False)) == 1
    assert torch.is_grad_enabled()


def test_a_compiled_model_is_not_run_as_compiled() -> None:
    def refuse(*_: object) -> object:
        raise AssertionError("compiled")

    model = torch.compile(nn.Conv2d(2, 3, 1), backend=refuse)
    (found,) = answer_on_shapes(model, (1, 2, 8, 8))
    assert found.shape == (1, 3, 8, 8)


def test_a_size_that_is_not_taken_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, nn.functional.max_pool2d(x, 2).repeat(1, 1, 2, 2)], 1)

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(TraceError):
            answer_on_shapes(Halved(), (1, 3, 9, 9))
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
