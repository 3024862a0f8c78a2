"""`outsize.verify`: right modules are proved, wrong ones found, and neither is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import rasterio
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outsize
from outsize.library import verify as home


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).normal(size=(3, 150, 131)).astype(np.float32)
    path = tmp_path / "scene.tif"
    with rasterio.open(path, "w", driver="GTiff", count=3, height=150, width=131, dtype="float32") as file:
        file.write(pixels)
    return path


class Net(nn.Module):
    """A stride of 2, and whatever else is done to its logits."""

    def __init__(self, more: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(3, 6, 4, stride=2, padding=1), nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.more = more

    def forward(self, images: Tensor) -> Any:
        """Return logits of the picture's size."""
        made = self.up(self.down(F.pad(images, (0, images.shape[-1] % 2, 0, images.shape[-2] % 2))))
        return self.more(made[..., : images.shape[-2], : images.shape[-1]])


def test_the_public_name_is_this_function() -> None:
    assert outsize.verify is home.verify


@pytest.mark.parametrize("limits", [{}, {"tile_px": 32}])
def test_a_right_module_is_proved(scene: Path, limits: dict[str, Any]) -> None:
    model = Net(lambda logits: {"out": logits, "aux": logits.mean()}).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = outsize.verify(model, scene, limits=limits, device="cpu")
    assert found.ok, str(found)
    assert (found.exact, found.equals, found.failures, found.unproven) == (True, "model(scene)", (), ())
    assert found.tiled["float64"].difference.relative < 1e-14
    assert found.tiled["float64"].difference.interior_tiles > 0
    assert found.probe is not None
    assert found.probe.probe.sufficient
    assert found.probe.probe.tight
    assert found.trial is not None
    assert not found.trial.found
    assert str(found).endswith("\nok: model(scene)")
    # it is as it was, and nothing was written
    assert model.training
    assert isinstance(model(torch.zeros(1, 3, 8, 8)), dict)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [each.name for each in scene.parent.iterdir()] == ["scene.tif"]


class Counts(Net):
    """Answers otherwise from its fourth call on."""

    calls = 0

    def forward(self, images: Tensor) -> Any:
        """Return logits, and remember."""
        if not torch.compiler.is_exporting():
            self.calls += 1
        return super().forward(images) * (1.0 + (self.calls > 3))


@pytest.mark.parametrize("limits", [{}, {"tile_px": 32}])
def test_what_remembers_is_found_out(scene: Path, limits: dict[str, Any]) -> None:
    found = outsize.verify(Counts(), scene, limits=limits, device="cpu")
    assert not found.ok
    assert any("differs from run to run" in each for each in found.failures)
    assert "NOT ok: " in str(found)


def test_what_looks_everywhere_is_measured_and_not_ok(scene: Path) -> None:
    model = nn.Sequential(Net(), nn.GroupNorm(2, 4))
    found = outsize.verify(model, scene, limits={"tile_px": 32, "passes": False}, device="cpu")
    assert not found.ok
    assert not found.exact
    assert found.equals is None
    assert "approximate: 1 (group_norm)" in found.failures[0]
    assert found.tiled["float64"].difference.relative > 1e-3
    whole = outsize.verify(model, scene, device="cpu")  # one window: nothing is cut
    assert whole.ok
    assert whole.proofs == ()
    assert "not cut" in str(whole)


class InSingle(Net):
    """Takes float32 alone."""

    def forward(self, images: Tensor) -> Any:
        """Return logits; a filter of a fixed type is in the way of others."""
        fixed = torch.ones(4, 4, 1, 1)
        return F.conv2d(cast(Tensor, super().forward(images)), fixed)


def test_what_cannot_be_proved_is_said(scene: Path) -> None:
    found = outsize.verify(InSingle(), scene, limits={"tile_px": 32}, device="cpu")
    assert found.ok, str(found)
    assert [each.what for each in found.unproven] == ["tiled = whole, float64", "halo"]
    assert "does not run in float64 (RuntimeError" in found.unproven[0].why
    assert found.tiled["float32"].passed


def test_half_precision_is_proved_in_full(scene: Path) -> None:
    model = Net().bfloat16()
    found = outsize.verify(model, scene, limits={"tile_px": 32}, device="cpu")
    assert found.ok, str(found)
    assert next(model.parameters()).dtype == torch.bfloat16


def test_a_run(trained_run: Path, scenes: Path) -> None:
    found = outsize.verify(trained_run, scenes / "test-2.tif", device="cpu")
    assert found.ok, str(found)
    assert found.tiled["float32"].passed
