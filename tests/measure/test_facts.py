"""Facts of a model on this machine, as a plan takes them."""

from __future__ import annotations

import torch

from outsize.measure.facts import gather_facts
from outsize.models import build_model


def test_the_window_looked_at_is_a_multiple_of_the_stride() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=3, width=4)
    facts = gather_facts(model, 3, device=torch.device("cpu"), bf16=False, optimizer="sgd")
    assert facts.halo.exact
    assert facts.halo.stride_px == 4
    assert facts.window.window_px % 4 == 0
    assert facts.machine.device == "cpu"
    num_weights = sum(each.numel() for each in model.parameters())
    assert facts.window.optimizer_bytes == 4 * num_weights * 2
