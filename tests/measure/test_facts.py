"""Facts of a model on this machine, as a plan takes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.measure.facts import gather_facts, halo_of
from outsize.measure.machine import look_at_machine
from outsize.models import build_model
from outsize.tiles.halo import Halo, Reach


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


def test_the_halo_reaches_as_far_as_the_maps_of_the_input_look() -> None:
    class Mapped(nn.Module):
        input_maps = ("canny",)

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 5, padding=2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.conv(images)

    assert halo_of(nn.Conv2d(3, 2, 5, padding=2), 3).rows == Reach(2, 2)
    assert halo_of(Mapped(), 2).rows == Reach(2 + 18, 2 + 18)
    machine = look_at_machine(torch.device("cpu"))
    assert gather_facts(Mapped(), 2, machine, bf16=False).halo.cols == Reach(20, 20)


def test_a_stride_longer_than_the_windows_looked_at() -> None:
    machine, halo = look_at_machine(torch.device("cpu")), Halo(Reach(0, 0), Reach(0, 0), 1536)
    facts = gather_facts(nn.Conv2d(3, 2, 1), 3, machine, bf16=False, halo=halo)
    assert facts.window.predict_bytes_per_px > 0


def test_a_size_that_is_fixed_inside_makes_no_stride() -> None:
    class Resized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = nn.functional.interpolate(x, size=(101, 77))
            return nn.functional.interpolate(small, size=(x.shape[-2], x.shape[-1]))

    halo = halo_of(Resized(), 3)
    assert not halo.exact
    assert halo.stride_px <= 128
