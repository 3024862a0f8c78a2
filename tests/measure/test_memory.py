"""Bytes that live at once, against counts by hand."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from outsize.measure.memory import LiveBytes, window_facts
from outsize.models import build_model

CPU = torch.device("cpu")


def test_storages_count_while_they_live() -> None:
    with LiveBytes() as live:
        first = torch.zeros(100)
        view = first[10:].view(9, 10)
        second = first + 1
        assert live.now_bytes == 800
        del first
        assert live.now_bytes == 800  # the view holds the storage
        del view
        assert live.now_bytes == 400
        del second
    assert live.now_bytes == 0
    assert live.peak_bytes == 800


def test_a_freed_storage_is_forgotten_though_its_address_is_used_again() -> None:
    with LiveBytes() as live:
        for _ in range(50):
            kept = torch.zeros(1000)
            del kept
    assert live.peak_bytes == 4000
    assert live.now_bytes == 0


def test_what_was_there_before_is_not_counted() -> None:
    weight = torch.zeros(30, 20)
    with LiveBytes() as live:
        turned = weight.t()
        weight.add_(1)
        product = torch.zeros(5, 20) @ turned
    assert live.now_bytes == product.nbytes
    assert live.peak_bytes == 5 * 20 * 4 + product.nbytes


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1))


def test_a_small_net_by_hand() -> None:
    facts = window_facts(_net(), 2, window_px=16, optimizer="sgd", device=CPU, bf16=False)
    num_weights = 6 * 2 * 9 + 6 + 3 * 6 + 3
    assert facts.weights_bytes == 4 * num_weights
    assert facts.optimizer_bytes == 4 * num_weights * 2  # gradients, momentum
    # input 2, convolution 6, ReLU 6 planes live while the ReLU runs; the input of a layer is freed after it
    assert facts.predict_bytes_per_px == 4 * (2 + 6 + 6)
    # kept for backward: input 2, convolution 6 (freed: ReLU keeps its result), ReLU 6, then logits 3 and what the
    # loss makes of them: at least these live at the start of backward, and never twice as much
    least = 4 * (2 + 6 + 3)
    assert least <= facts.train_bytes_per_px <= 3 * least
    assert facts.source == "traced"


def test_adamw_keeps_two_tensors_beside_each_weight_that_trains() -> None:
    net = _net()
    net[0].requires_grad_(False)
    facts = window_facts(net, 2, window_px=16, optimizer="adamw", device=CPU, bf16=False)
    assert facts.optimizer_bytes == 4 * (3 * 6 + 3) * 3


def test_a_frozen_model_is_counted_too() -> None:
    facts = window_facts(
        _net().requires_grad_(False), 2, window_px=16, optimizer="adamw", device=CPU, bf16=False
    )
    assert facts.optimizer_bytes == 0
    assert facts.train_bytes_per_px == facts.predict_bytes_per_px == 4 * (2 + 6 + 6)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_peaks_of_a_unet_grow_with_the_pixels(norm: str) -> None:
    model = build_model("unet", num_classes=4, in_channels=3, levels=3, width=4, norm=norm)
    small, large = (
        window_facts(model, 3, window_px=side_px, optimizer="adamw", device=CPU, bf16=False)
        for side_px in (128, 512)
    )
    assert large.predict_bytes_per_px == pytest.approx(small.predict_bytes_per_px, rel=0.02)
    assert large.train_bytes_per_px == pytest.approx(small.train_bytes_per_px, rel=0.05)
    assert large.train_bytes_per_px > 2 * large.predict_bytes_per_px


def test_counting_leaves_the_model_alone() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=2, width=4).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    window_facts(model, 3, window_px=32, optimizer="sgd", device=CPU, bf16=False)
    gc.collect()
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
