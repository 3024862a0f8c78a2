"""Sides that are no multiple of the stride: exact is the answer to the scene as it is, or what it is, is said."""

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
from outsize.infer.sides import compared_with, fitted
from outsize.infer.stream import Settings
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.plan.plan import Tiling
from outsize.tiles.halo import Halo, Reach, derive_halo

_SIZE = (83, 70)  # 8 divides neither
Settle = Callable[[nn.Module, int], Tiling]


class Resizes(nn.Module):
    """An eighth, then back to the size of the picture, as torchvision's networks do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.down = nn.Sequential(*(nn.Conv2d(each, 8, 3, stride=2, padding=1) for each in (3, 8, 8)))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the picture's size."""
        found = self.head(self.down(images))
        return F.interpolate(found, size=images.shape[-2:], mode="bilinear", align_corners=False)


class Crops(Resizes):
    """As much enlarged as it was reduced, and the rest cut off: each pixel looks at the same whatever the size."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the picture's size."""
        found = F.interpolate(self.head(self.down(images)), scale_factor=8.0, mode="bilinear")
        return found[..., : images.shape[-2], : images.shape[-1]]


class Wide(nn.Module):
    """Full size throughout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the picture's size."""
        return cast(Tensor, self.body(images))


class Strict(Crops):
    """Takes multiples of its stride only, as the networks of smp do."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, or refuse."""
        if images.shape[-2] % 8 or images.shape[-1] % 8:
            raise RuntimeError("wrong input shape")
        return super().forward(images)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).normal(size=(3, *_SIZE)).astype(np.float32)
    path = tmp_path / "scene.tif"
    with rasterio.open(
        path, "w", driver="GTiff", count=3, height=_SIZE[0], width=_SIZE[1], dtype="float32"
    ) as file:
        file.write(pixels)
    return path


def _expected(model: nn.Module, scene: Path, *, filled: int = 0) -> Any:
    with rasterio.open(scene) as file:
        images = torch.from_numpy(file.read())[None].double()
    if filled:
        images = F.pad(images, (0, -_SIZE[1] % filled, 0, -_SIZE[0] % filled))
    with torch.no_grad():
        answer = model.eval()(images)
    logits = answer if isinstance(answer, Tensor) else answer["out"]
    return logits[0, :, : _SIZE[0], : _SIZE[1]].argmax(0).numpy()


def _predicted(model: nn.Module, scene: Path, **limits: Any) -> tuple[Any, dict[str, Any]]:
    target = scene.with_name("map.tif")
    done = outsize.predict(model, scene, target, limits=limits, device="cpu")
    with rasterio.open(target) as file:
        return file.read(1), done


@pytest.mark.parametrize("make", [Resizes, Crops])
def test_a_scene_in_one_window_is_given_as_it_is(scene: Path, make: Callable[[], nn.Module]) -> None:
    model = make().double()  # no two logits are close enough for rounding to choose between them
    found, done = _predicted(model, scene)
    assert np.array_equal(found, _expected(model, scene))
    assert not np.array_equal(found, _expected(model, scene, filled=8))  # or the test shows nothing
    assert (done["num_tiles"], done["exact"], done["equals"]) == (1, True, "model(scene)")


def test_windows_that_end_with_the_scene_are_exact_where_that_is_so(scene: Path) -> None:
    model = Crops().double()
    found, done = _predicted(model, scene, tile_px=32)
    assert np.array_equal(found, _expected(model, scene))
    assert (done["num_tiles"], done["exact"], done["equals"]) == (9, True, "model(scene)")


class Sometimes(Crops):
    """Adds one where the scene of the test is whole."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the picture's size."""
        return super().forward(images) + images[:, :1] * (images.shape[-2:] == _SIZE)


def test_windows_end_with_the_scene_only_where_the_scene_is_not_treated_otherwise(scene: Path) -> None:
    model = Sometimes().double()
    found, done = _predicted(model, scene, tile_px=32)
    assert np.array_equal(found, _expected(model, scene, filled=8))
    assert (done["exact"], done["equals"]) == (True, "model(scene filled up with zeros to 88 x 72 px)")


def test_resizing_to_the_size_of_the_window_is_filled_up_and_says_so(scene: Path) -> None:
    model = Resizes().double()
    found, done = _predicted(model, scene, tile_px=32)
    assert np.array_equal(found, _expected(model, scene, filled=8))
    assert (done["exact"], done["equals"]) == (True, "model(scene filled up with zeros to 88 x 72 px)")


def test_a_model_that_takes_no_such_size_is_filled_up_and_says_so(scene: Path) -> None:
    model = Strict().double()
    found, done = _predicted(model, scene)
    assert np.array_equal(found, _expected(model, scene, filled=8))
    assert (done["exact"], done["equals"]) == (True, "model(scene filled up with zeros to 88 x 72 px)")


def _tiling(more_px: int = 0) -> Tiling:
    """Return a tiling for networks as above: they look 15 px before and 8 px after a core."""
    return Tiling.of(16, Halo(Reach(15, 8), Reach(15, 8), 8).widened(more_px))


def test_the_halo_is_that_of_the_networks() -> None:
    halo = derive_halo(trace(Crops(), example_shape(3)))
    assert Tiling.of(16, halo) == _tiling()


@pytest.mark.parametrize("size", [(283, 270), (288, 270), (283, 272), (257, 400)])
@pytest.mark.parametrize("more_px", [0, 32])
def test_the_trial_tells_the_two_apart(size: tuple[int, int], more_px: int) -> None:
    settings = Settings(1, torch.device("cpu"))
    coarse = Settings(1, torch.device("cpu"), dtype=torch.bfloat16)
    for make, ends in ((Resizes, False), (Crops, True)):
        model = make().eval()
        tiling = _tiling(more_px)
        assert fitted(tiling, model, 3, size, settings).pads is not ends
        assert fitted(tiling, model.bfloat16(), 3, size, coarse).pads is not ends


def test_a_side_that_is_a_multiple_is_left_alone() -> None:
    model = Resizes().eval()
    tiling = _tiling()
    assert fitted(tiling, model, 3, (88, 72), Settings(1, torch.device("cpu"))) is tiling
    assert compared_with(tiling, model, (88, 72)) == "model(scene)"


@pytest.mark.parametrize(
    ("name", "options", "stride_px"),
    [("unet", {"levels": 3, "width": 4}, 4), ("erfnet", {"width": 4}, 8), ("smp:FPN/resnet18", {}, 32)],
)
def test_our_networks_answer_the_same_filled_up_or_not(
    name: str, options: dict[str, Any], stride_px: int
) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=3, in_channels=2, **options).double().eval()
    images = torch.randn(1, 2, 75, 90, dtype=torch.float64)
    filled = F.pad(images, (0, -90 % stride_px, 0, -75 % stride_px))
    with torch.no_grad():
        assert torch.equal(model(images), model(filled)[..., :75, :90])
    assert compared_with(Tiling(64, (0, 0), (0, 0), stride_px), model, (75, 90)) == "model(scene)"


def test_an_approximate_answer_is_compared_with_nothing(scene: Path) -> None:
    model = nn.Sequential(Crops(), nn.GroupNorm(1, 4)).double()
    _, done = _predicted(model, scene, tile_px=32, allow_approximate=True, passes=False)
    assert not done["exact"]
    assert "equals" not in done


@pytest.mark.long
@pytest.mark.parametrize("limits", [{}, {"tile_px": 176}])
def test_torchvision_at_its_word(tmp_path: Path, limits: dict[str, Any]) -> None:
    """A window of it is as large as the scene: it looks 240 px around each pixel."""
    from torchvision.models.segmentation import fcn_resnet50

    torch.manual_seed(0)
    model = fcn_resnet50(weights=None, weights_backbone=None, aux_loss=True)
    size = 331, 277
    scene = tmp_path / "scene.tif"
    pixels = np.random.default_rng(1).integers(0, 255, (3, *size)).astype(np.uint8)
    with rasterio.open(
        scene, "w", driver="GTiff", count=3, height=size[0], width=size[1], dtype="uint8"
    ) as file:
        file.write(pixels)
    done = outsize.predict(model, scene, tmp_path / "map.tif", limits=limits, device="cpu")
    assert done["num_tiles"] == (4 if limits else 1)
    images = torch.from_numpy(pixels)[None].float()
    with torch.no_grad():
        logits = model.eval()(images)["out"][0, :, : size[0], : size[1]]
    with rasterio.open(tmp_path / "map.tif") as file:
        found = torch.from_numpy(file.read(1)).long()
    # where classes differ, their logits are equal to rounding
    behind = (logits.max(0).values - logits.gather(0, found[None])[0]).max()
    assert behind <= 1e-5 * logits.abs().max()
    assert done["exact"]
    assert done["equals"] == "model(scene)"
