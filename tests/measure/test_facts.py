"""Facts of a model on this machine, as a plan takes them."""

from __future__ import annotations

import pytest
import torch

from outsize.measure.facts import gather_facts
from outsize.measure.machine import look_at_machine
from outsize.models import build_model


def test_the_window_looked_at_is_a_multiple_of_the_stride() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=3, width=4)
    machine = look_at_machine(torch.device("cpu"))
    facts = gather_facts(model, 3, machine, bf16=False, op_s=lambda op: 1e-6)
    assert facts.halo.exact
    assert facts.halo.stride_px == 4
    assert facts.window.window_px % 4 == 0
    assert facts.machine.device == "cpu"
    assert facts.window.predict_s_per_px is not None
    num_weights = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    # each weight takes up whole blocks of 512 bytes
    assert 4 * num_weights < facts.window.weights_bytes < 4 * num_weights + 512 * len(model.state_dict())


@pytest.mark.parametrize("width", [4, 8])
def test_memory_grows_with_the_width(width: int) -> None:
    machine = look_at_machine(torch.device("cpu"))
    narrow, wide = (
        gather_facts(
            build_model("unet", num_classes=2, in_channels=3, levels=3, width=each), 3, machine, bf16=False
        ).window
        for each in (width, 2 * width)
    )
    assert 1.5 < wide.predict_bytes_per_px / narrow.predict_bytes_per_px < 2.1
    assert narrow.predict_s_per_px is None
