"""A scene from file to map in passes, through the library as a user calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from tests.conftest import WriteRaster
from tests.infer.passes.zoo import Forward, Small, conv, squeeze
from torch import Tensor, nn

import outsize
from outsize.errors import PlanError
from outsize.infer.passes import keep, scene, trial
from outsize.plan.predict.passes import PassRoom, choose_passes

CUT = {"tile_px": 16}
SIZE = (57, 90)


@pytest.fixture
def path(write_raster: WriteRaster) -> Path:
    """A scene of three bands with a corner of nodata, whose sides are no multiples of anything."""
    rng = np.random.default_rng(5)
    pixels = rng.integers(1, 200, (3, *SIZE)).astype(np.uint8)
    pixels[:, :10, :7] = 0
    return write_raster("scene.tif", pixels, nodata=0)


def squeezed() -> nn.Module:
    """A network with two squeezes, one behind the other."""
    torch.manual_seed(0)
    return Small(
        lambda m, x: m[4](squeeze(m[3], m[2](squeeze(m[1], m[0](x))).relu())),
        conv(3, 8),
        conv(8, 8, 1),
        conv(8, 8),
        conv(8, 8, 1),
        conv(8, 4),
    ).eval()


def whole_map(model: nn.Module, path: Path, **padding: int) -> np.ndarray:
    """Return the classes that the model gives the scene as a whole."""
    with rasterio.open(path) as file:
        inputs = torch.from_numpy(file.read()).float()[None]
    down, across = padding.get("down", 0), padding.get("across", 0)
    with torch.inference_mode():
        logits: Tensor = model(nn.functional.pad(inputs, (0, across, 0, down)))
    found = logits.argmax(1)[0, : SIZE[0], : SIZE[1]].numpy()
    return np.where((inputs[0] == 0).all(0).numpy(), 255, found)


def predicted(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        found: np.ndarray = file.read(1)
    return found


def test_a_module_that_looks_at_the_whole_picture_is_exact_in_tiles(path: Path, tmp_path: Path) -> None:
    model, target = squeezed(), tmp_path / "map.tif"
    done = outsize.predict(model, path, target, limits=CUT, device="cpu")
    assert (done["exact"], done["equals"], done["num_passes"]) == (True, "model(scene)", 3)
    assert done["num_tiles"] == 4 * 6
    assert (predicted(target) != whole_map(model, path)).mean() < 1e-3  # ties in the last digit
    with pytest.raises(PlanError, match="looks at the whole picture"):
        outsize.predict(model, path, target, limits={**CUT, "passes": False}, device="cpu")
    done = outsize.predict(
        model, path, target, limits={**CUT, "passes": False, "allow_approximate": True}, device="cpu"
    )
    assert not done["exact"]


def test_maps_that_do_not_fit_in_memory_lie_beside_the_result(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path | None] = []

    class Watched(keep.Keep):
        def __init__(self, folder: Path | None) -> None:
            folders.append(folder)
            super().__init__(folder)

    def little_room(laid: object, cores: object, room: PassRoom) -> object:
        return choose_passes(laid, cores, PassRoom(room.compute_bytes, 1.0))  # type: ignore[arg-type]

    monkeypatch.setattr(scene, "Keep", Watched)
    monkeypatch.setattr("outsize.plan.predict.passes.choose_passes", little_room)
    model, target = squeezed(), tmp_path / "out" / "map.tif"
    done = outsize.predict(model, path, target, limits=CUT, device="cpu")
    assert done["exact"]
    assert folders[-1] is not None
    assert tmp_path / "out" in folders[-1].parents
    assert (predicted(target) != whole_map(model, path)).mean() < 1e-3
    assert sorted(each.name for each in target.parent.iterdir()) == ["map.qml", "map.tif"]


def test_a_model_that_takes_multiples_only_is_compared_with_the_scene_filled_up(
    path: Path, tmp_path: Path
) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.down, self.up = conv(3, 4, stride=4), nn.Upsample(scale_factor=4)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] % 4 or x.shape[-2] % 4:
                raise RuntimeError("wrong size")
            made: Tensor = self.up(self.down(x))
            return made * made.mean((2, 3), keepdim=True)

    model, target = Picky().eval(), tmp_path / "map.tif"
    done = outsize.predict(model, path, target, limits=CUT, device="cpu")
    assert (done["exact"], done["num_passes"]) == (True, 2)
    assert done["equals"] == "model(scene filled up with zeros to 60 x 92 px)"
    assert (predicted(target) != whole_map(model, path, down=3, across=2)).mean() < 1e-3


def test_a_module_with_a_history_is_refused_in_passes_too(path: Path, tmp_path: Path) -> None:
    class Drifting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.runs = conv(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            made: Tensor = self.layer(x) * (x.mean() + self.runs)
            return made

    with pytest.raises(PlanError, match=r"nor in passes, .*differs from run to run"):
        outsize.predict(Drifting().eval(), path, tmp_path / "map.tif", limits=CUT, device="cpu")
    assert trial.pass_graph(squeezed(), 5, (32, 32), 1) is None  # it takes three bands


def test_a_module_that_changes_its_ways_now_and_then_is_refused_in_passes_too(
    path: Path, tmp_path: Path
) -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = conv(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            made: Tensor = self.layer(x) * x.mean()
            return made if self.calls < 9 else -made

    with pytest.raises(PlanError, match=r"nor in passes, .*differs from run to run"):
        outsize.predict(Fickle().eval(), path, tmp_path / "map.tif", limits=CUT, device="cpu")


def _other_when_called(m: nn.ModuleList, x: Tensor) -> Tensor:
    made: Tensor = m[0](x) * x.mean()
    return made if torch.compiler.is_compiling() or x.shape[-1] < 80 else -made


def _by_memory(m: nn.ModuleList, x: Tensor) -> Tensor:
    flat = x.contiguous()
    moved = flat.as_strided((1, 3, x.shape[-2], x.shape[-1] - 1), flat.stride(), 1)
    made: Tensor = m[0](x + moved.sum(-1, keepdim=True))
    return made


@pytest.mark.parametrize(
    ("forward", "why"),
    [(_other_when_called, "while torch reads its graph"), (_by_memory, "layout of a tensor")],
)
def test_what_the_graph_does_not_say_is_refused_in_passes(
    forward: Forward, why: str, path: Path, tmp_path: Path
) -> None:
    model = Small(forward, conv(3, 4)).eval()
    with pytest.raises(PlanError, match=f"nor in passes, .*{why}"):
        outsize.predict(model, path, tmp_path / "map.tif", limits=CUT, device="cpu")


def _less_median(m: nn.ModuleList, x: Tensor) -> Tensor:
    middle = x.flatten(1).median(1)[0]  # a view in the graph
    return m[0](x - middle[:, None, None, None])


def _resized_and_back(m: nn.ModuleList, x: Tensor) -> Tensor:
    size = x.shape[-2], x.shape[-1]
    return nn.functional.interpolate(
        m[0](nn.functional.interpolate(x, size=(51, 77))), size=size, mode="bilinear"
    )


def _without_padding(m: nn.ModuleList, x: Tensor) -> Tensor:
    return nn.functional.interpolate(m[0](x), size=(x.shape[-2], x.shape[-1]), mode="bilinear")


@pytest.mark.parametrize(
    ("forward", "layer"),
    [
        (_less_median, conv(3, 4)),
        (_resized_and_back, conv(3, 4)),
        (_without_padding, nn.Conv2d(3, 4, 3)),
    ],
)
def test_modules_of_odd_sizes_and_layouts(
    write_raster: WriteRaster, tmp_path: Path, forward: Forward, layer: nn.Module
) -> None:
    pixels = np.random.default_rng(5).integers(1, 200, (3, 150, 200)).astype(np.uint8)
    path = write_raster("large.tif", pixels)
    model, target = Small(forward, layer).eval(), tmp_path / "map.tif"
    done = outsize.predict(model, path, target, limits={"tile_px": 128}, device="cpu")
    assert (done["exact"], done["equals"], done["num_tiles"]) == (True, "model(scene)", 4)
    with torch.inference_mode():
        whole = model(torch.from_numpy(pixels).float()[None]).argmax(1)[0].numpy()
    assert (predicted(target) != whole).mean() < 1e-3
