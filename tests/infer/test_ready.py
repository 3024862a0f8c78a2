"""A model made ready: planned for the largest scene, in evaluation mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from outsize.card import Card
from outsize.infer.cutting import PER_PIXEL
from outsize.infer.ready import load_ready, make_ready, wants_bf16
from outsize.job import LimitsSection
from outsize.plan.predict.choose import window_pixels
from outsize.raster.reading import describe
from outsize.runs import RunFolder


@pytest.mark.parametrize(
    ("precision", "device", "capability", "bf16"),
    [
        ("auto", "cpu", (0, 0), False),
        ("auto", "cuda", (9, 0), True),
        ("auto", "cuda", (7, 0), False),
        ("fp32", "cuda", (9, 0), False),
        ("bf16", "cpu", (0, 0), True),
    ],
)
def test_auto_means_bf16_on_a_gpu_that_has_units_for_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, device: str, capability: tuple[int, int], bf16: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert wants_bf16(precision, torch.device(device)) is bf16


def test_the_plan_is_for_the_largest_scene(scenes: Path, net: nn.Module, card: Card) -> None:
    infos = [describe(scenes / "test-2.tif"), describe(scenes / "val-1.tif")]
    limits = LimitsSection(host_memory=2**30)
    ready = make_ready(net.train(), card, limits, infos, device_name="cpu", precision="auto")
    assert not ready.model.training
    assert ready.plan.exact
    assert ready.tiling.core_px >= 208  # one tile
    assert ready.settings.batch == ready.plan.batch
    assert ready.halo.exact


def test_a_long_strip_does_not_hide_the_width_of_others(scenes: Path, net: nn.Module, card: Card) -> None:
    square = describe(scenes / "test-2.tif")
    strip = replace(square, height=16, width=1 << 20)
    limits = LimitsSection(host_memory=2**30)
    ready = make_ready(net, card, limits, [square, strip], device_name="cpu", precision="fp32")
    assert window_pixels(ready.tiling, (square.height, strip.width)) * ready.plan.batch <= 1 << 20


def test_weights_have_a_name_that_changes_with_them(trained_run: Path, scenes: Path) -> None:
    run, infos = RunFolder(trained_run), [describe(scenes / "test-2.tif")]
    names = set()
    for checkpoint in (run.best, run.best, run.last):
        ready = load_ready(checkpoint, LimitsSection(), infos, PER_PIXEL, device_name="cpu", precision="fp32")
        names.add(ready.weights_id)
        assert ready.card.bands == ("blue", "green", "red", "nir")
    assert len(names) == 2
