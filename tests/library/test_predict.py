"""`outsize.predict`: a run or any module, a scene, a map."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from torch import Tensor, nn

import outsize
from outsize.commands.predict import predict
from outsize.errors import DataError, JobError, ModelError, OutputError, PlanError, RunError
from outsize.library import predict as api
from outsize.progress import Reporter


@pytest.fixture
def scene(scenes: Path) -> Path:
    return scenes / "test-2.tif"


class Brightest(nn.Module):
    """Names the brightest band, wherever training or dropout would change that."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm2d(4, affine=False).eval()
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Return the bands as logits."""
        drop: Tensor = self.drop(images)
        return drop


def test_the_public_name_is_this_function() -> None:
    assert outsize.predict is api.predict


def test_any_module(scene: Path, tmp_path: Path) -> None:
    model, target = Brightest(), tmp_path / "out" / "map.tif"
    mean, std = (100.0, 200.0, 300.0, 400.0), (10.0, 20.0, 30.0, 40.0)
    summary = outsize.predict(
        model, scene, target, statistics=(mean, std), polygons=tmp_path / "map.geojson", device="cpu"
    )
    with rasterio.open(scene) as file:
        pixels = file.read().astype(np.float64)
    shares = (pixels - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    expected = np.where((pixels != 0).any(0), shares.argmax(0), 255)
    with rasterio.open(target) as file:
        found = file.read(1)
    assert (found != expected).mean() < 1e-3  # ties fall to either band
    assert summary["map"] == str(target)
    assert summary["num_polygons"] > 0
    assert (tmp_path / "map.geojson").is_file()
    # the caller's module is as it was
    assert model.training
    assert model.drop.training
    assert not model.frozen.training


class Picky(nn.Module):
    """Looks at the whole picture, and takes no size that cannot be halved twice, or any."""

    def __init__(self, *, takes_any: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 4, 4, stride=4), nn.ConvTranspose2d(4, 4, 4, stride=4)
        self.norm, self.takes_any = nn.GroupNorm(1, 4), takes_any

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of four classes."""
        height, width = images.shape[-2:]
        if self.takes_any:
            images = nn.functional.pad(images, (0, -width % 4, 0, -height % 4))
        elif height % 4 or width % 4:
            raise RuntimeError("wrong shape")
        made: Tensor = self.up(self.norm(self.down(images)))[..., :height, :width]
        return made


def test_a_module_that_looks_everywhere_is_given_the_whole_where_it_takes_it(
    scene: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.tif"
    with rasterio.open(scene) as file:
        profile, pixels = {**file.profile, "height": 41, "width": 58}, file.read()[:, :41, :58]
    with rasterio.open(odd, "w", **profile) as file:
        file.write(pixels)
    assert outsize.predict(Picky(takes_any=True), odd, tmp_path / "a.tif", device="cpu")["exact"]
    with pytest.raises(PlanError, match=r"norm \(group_norm\).*a size that the model takes"):
        outsize.predict(
            Picky(takes_any=False), odd, tmp_path / "b.tif", limits={"passes": False}, device="cpu"
        )
    limits = {"allow_approximate": True, "passes": False}
    done = outsize.predict(Picky(takes_any=False), odd, tmp_path / "b.tif", limits=limits, device="cpu")
    assert not done["exact"]


def test_a_run(trained_run: Path, scene: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    summary = outsize.predict(str(trained_run), str(scene), str(tmp_path / "map.tif"), device="cpu")
    assert summary["num_tiles"] == 3 * 4  # the job's tile_px = 64
    assert (summary["height"], summary["width"]) == (160, 208)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert set(np.unique(file.read(1))) <= {0, 1, 2, 3, 4, 5, 255}
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


def test_a_run_is_predicted_in_the_precision_of_its_job_by_library_and_command(
    trained_run: Path, scene: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    job = run / "job.toml"
    job.write_text(job.read_text().replace('precision = "auto"', 'precision = "bf16"'))
    done = outsize.predict(run, scene, tmp_path / "map.tif", device="cpu")
    (told,) = predict(
        run, [scene], out=tmp_path / "maps", overrides=(), device_name="cpu", reporter=Reporter("quiet")
    )
    assert done["precision"] == told["precision"] == "bf16"
    (entry,) = json.loads((tmp_path / "maps/predict.json").read_text())["scenes"]
    assert (entry["precision"], entry["equals"]) == ("bf16", "model(scene)")
    maps = []
    for path in (tmp_path / "map.tif", tmp_path / f"maps/{scene.stem}.tif"):
        with rasterio.open(path) as file:
            maps.append(file.read(1))
    assert np.array_equal(*maps)
    plain = outsize.predict(run, scene, tmp_path / "map.tif", device="cpu", precision="fp32")
    assert plain["precision"] == "fp32"


def test_limits_replace_those_of_the_run(trained_run: Path, scene: Path, tmp_path: Path) -> None:
    maps = []
    for tile_px, num_tiles in ((32, 5 * 7), (256, 1)):
        target = tmp_path / f"{tile_px}.tif"
        summary = outsize.predict(trained_run, scene, target, limits={"tile_px": tile_px}, device="cpu")
        assert summary["num_tiles"] == num_tiles
        with rasterio.open(target) as file:
            maps.append(file.read(1))
    assert (maps[0] != maps[1]).mean() < 1e-3  # float32 ties


def test_mistakes_are_one_line(trained_run: Path, scene: Path, tmp_path: Path) -> None:
    target = tmp_path / "map.tif"
    with pytest.raises(JobError, match=r"unknown key 'limits\.tile'.*did you mean 'tile_px'"):
        outsize.predict(Brightest(), scene, target, limits={"tile": 64})
    with pytest.raises(JobError, match=r"'limits\.halo_px'.*found -1"):
        outsize.predict(Brightest(), scene, target, limits={"halo_px": -1})
    with pytest.raises(ModelError, match=r"found 3 means and 4 deviations, needed 4 of each"):
        outsize.predict(Brightest(), scene, target, statistics=([0.0] * 3, [1.0] * 4))
    with pytest.raises(ModelError, match="no map of logits"):
        outsize.predict(nn.Flatten(), scene, target)
    with pytest.raises(RunError, match="is no run folder"):
        outsize.predict(tmp_path, scene, target)
    with pytest.raises(DataError, match="no such file"):
        outsize.predict(trained_run, tmp_path / "missing.tif", target)
    assert not target.exists()


def test_the_scene_is_never_overwritten(scene: Path, tmp_path: Path) -> None:
    before = scene.read_bytes()
    for target in (scene, scene.parent / "." / scene.name):
        with pytest.raises(OutputError, match="the scene itself"):
            outsize.predict(Brightest(), scene, target)
    assert scene.read_bytes() == before


def test_a_model_in_the_middle_of_training_keeps_its_statistics(scene: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = outsize.build_model("unet", num_classes=3, in_channels=4, levels=2, width=4).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    outsize.predict(model, scene, tmp_path / "map.tif", device="cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_files_of_others_are_written_over_only_when_a_caller_says_so(scene: Path, tmp_path: Path) -> None:
    target, polygons = tmp_path / "map.tif", tmp_path / "shapes" / "map.gpkg"
    polygons.parent.mkdir()
    polygons.write_text("mine")
    match = r"map.gpkg would be written over: found a file of other make, .*overwrite=True"
    with pytest.raises(OutputError, match=match):
        outsize.predict(Brightest(), scene, target, polygons=polygons, device="cpu")
    assert polygons.read_text() == "mine"
    for overwrite in (True, False):  # a second time it is ours
        outsize.predict(Brightest(), scene, target, polygons=polygons, device="cpu", overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["map.gpkg", "map.qml", "map.tif", "shapes"]


_TABLES: dict[int, Tensor] = {}


@functools.lru_cache(maxsize=4)
def _numbers(num: int) -> Tensor:
    return torch.arange(num, dtype=torch.float32).view(1, -1, 1, 1)


def _from_table(num: int) -> Tensor:
    if num not in _TABLES:
        _TABLES[num] = torch.arange(num, dtype=torch.float32).view(1, -1, 1, 1)
    return _TABLES[num]


@pytest.mark.parametrize("numbers", [_numbers, _from_table])
def test_what_a_model_keeps_for_later_is_of_use_later(
    numbers: Callable[[int], Tensor], scene: Path, tmp_path: Path
) -> None:
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, images: Tensor) -> Tensor:
            weighed: Tensor = self.layer(images) * numbers(4)
            return weighed

    model = Weighed()
    done = outsize.predict(model, scene, tmp_path / "map.tif", limits={"tile_px": 64}, device="cpu")
    assert done["exact"]
    model(torch.ones(1, 4, 8, 8)).sum().backward()  # neither a shape nor a tensor of inference mode is left
    assert model.layer.weight.grad is not None
