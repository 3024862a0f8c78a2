"""Whole scenes: the map does not depend on the tiles, and what is asked for is on disk, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.card import Card
from outsize.errors import DataError, ModelError, OutputError
from outsize.files.ownership import Consent, is_ours
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import NODATA, Settings
from outsize.plan.plan import Tiling
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.tasks.segment.maps.decoding import CONFIDENCE_SCALE
from outsize.tasks.segment.maps.scene import Products, predict_scene

Tilings = Callable[[int], Tiling]


@pytest.fixture
def info(write_raster: Callable[..., Path], scene_pixels: NDArray[np.uint16], card: Card) -> SceneInfo:
    return describe(write_raster("scene.tif", scene_pixels, names=card.bands, nodata=0))


def _predict(
    model: nn.Module,
    card: Card,
    info: SceneInfo,
    products: Products,
    tiling: Tiling,
    batch: int = 2,
    weights_id: str = "some weights",
) -> dict[str, Any]:
    return predict_scene(
        model,
        card,
        info,
        products,
        tiling=tiling,
        settings=Settings(batch=batch, device=torch.device("cpu")),
        weights_id=weights_id,
        reporter=Reporter("quiet"),
    )


def _read(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as file:
        pixels: NDArray[Any] = file.read()
    return pixels


@torch.inference_mode()
def _whole(model: nn.Module, card: Card, info: SceneInfo) -> NDArray[Any]:
    with SceneReader(info) as reader:
        raster = reader.read(info.window)
    prepare = make_prepare(card.bands, info, card.statistics)
    images, valid = torch.from_numpy(raster.pixels)[None], torch.from_numpy(raster.valid)[None]
    classes = model(prepare(images, valid))[0].argmax(0).numpy()
    values = np.array([each.value for each in card.classes])
    return np.where(raster.valid, values[classes], NODATA)


@pytest.mark.parametrize(("core_px", "batch"), [(16, 3), (48, 1), (64, 50), (256, 2)])
def test_the_map_is_that_of_the_whole_scene(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings, core_px: int, batch: int
) -> None:
    products = Products(tmp_path / "out" / "map.tif")
    summary = _predict(net, card, info, products, tiling(core_px), batch)
    found, expected = _read(products.map_path)[0], _whole(net, card, info)
    assert len(np.unique(expected)) > 3  # a map worth comparing
    np.testing.assert_array_equal(found, expected)
    assert (found[60:90, 100:160] == NODATA).all()
    assert summary["num_tiles"] == -(-150 // core_px) * -(-197 // core_px)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["map.qml", "map.tif"]


def test_everything_asked_for_is_there_and_nothing_else(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    folder = tmp_path / "out"
    products = Products(folder / "map.tif", confidence=True, probabilities=True, polygons=folder / "map.gpkg")
    summary = _predict(net, card, info, products, tiling(64))
    names = {path.name for path in folder.iterdir()}
    assert names == {"map.tif", "map.qml", "map_confidence.tif", "map_probabilities.tif", "map.gpkg"}
    assert all(map(is_ours, products.paths))
    assert set(summary["files"]) == names
    assert summary["map"] == str(products.map_path)
    assert summary["polygons"] == str(products.polygons)
    for path in (products.map_path, products.confidence_path, products.probabilities_path):
        with rasterio.open(path) as file:
            assert (file.height, file.width, file.nodata) == (150, 197, NODATA)
            assert file.crs.to_epsg() == 32632
            assert tuple(file.transform)[:6] == info.georef.transform
    classes, confidence = _read(products.map_path)[0], _read(products.confidence_path)[0]
    shares = _read(products.probabilities_path).astype(int)
    valid = classes != NODATA
    assert shares.shape[0] == 6
    assert np.abs(shares.sum(0)[valid] - CONFIDENCE_SCALE).max() <= 3  # six bands, each rounded
    assert (shares[:, ~valid] == NODATA).all()
    np.testing.assert_array_equal(shares.max(0)[valid], confidence[valid])
    with rasterio.open(products.map_path) as file:
        assert file.colormap(1)[card.classes[2].value][:3] == card.classes[2].colour


def test_a_map_in_the_place_of_a_users_file_is_refused(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "map.qml").write_text("mine")
    products = Products(folder / "map.tif", polygons=folder / "map.geojson")
    with pytest.raises(OutputError, match=r"map.qml would be written over"):
        _predict(net, card, info, products, tiling(64))
    assert [path.name for path in folder.iterdir()] == ["map.qml"]
    for consent in (Consent(overwrite=True), Consent()):
        _predict(net, card, info, replace(products, consent=consent), tiling(64))
    assert all(map(is_ours, products.paths))


def test_polygons_do_not_depend_on_the_tiles(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    found = []
    for core_px in (16, 80, 256):
        products = Products(tmp_path / f"{core_px}.tif", polygons=tmp_path / f"{core_px}.gpkg")
        summary = _predict(net, card, info, products, tiling(core_px))
        meta, _, geometry, columns = pyogrio.raw.read(products.polygons)
        shapes = shapely.from_wkb(geometry)
        names = columns[list(meta["fields"]).index("class")]
        assert summary["num_polygons"] == len(shapes)
        areas = {name: round(shapely.area(shapes[names == name]).sum(), 6) for name in np.unique(names)}
        found.append((len(shapes), areas))
    assert found[0] == found[1] == found[2]
    num_valid = np.count_nonzero(_read(tmp_path / "16.tif")[0] != NODATA)
    assert sum(found[0][1].values()) == pytest.approx(num_valid * 4)  # pixels of 2 m x 2 m


class _Counting(nn.Module):
    """Counts windows, and is interrupted after some."""

    def __init__(self, model: nn.Module, die_after: int | None = None) -> None:
        super().__init__()
        self.model, self.die_after, self.num_windows = model, die_after, 0

    def forward(self, images: Tensor) -> Tensor:
        if self.die_after is not None and self.num_windows >= self.die_after:
            raise KeyboardInterrupt
        self.num_windows += len(images)
        logits: Tensor = self.model(images)
        return logits


def test_an_interrupted_prediction_is_taken_up(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    products = Products(tmp_path / "map.tif", confidence=True)
    with pytest.raises(KeyboardInterrupt):
        _predict(_Counting(net, die_after=10), card, info, products, tiling(32), batch=1)
    assert not products.map_path.exists()
    assert products.work_folder.is_dir()
    second = _Counting(net)
    num_tiles = _predict(second, card, info, products, tiling(32), batch=1)["num_tiles"]
    assert num_tiles - 10 <= second.num_windows < num_tiles
    np.testing.assert_array_equal(_read(products.map_path)[0], _whole(net, card, info))
    assert not products.work_folder.exists()


@pytest.mark.parametrize("change", ["core", "halo", "weights"])
def test_what_was_begun_otherwise_is_not_taken_up(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings, change: str
) -> None:
    products, first = Products(tmp_path / "map.tif"), tiling(32)
    if change == "halo":
        first = replace(first, halo_before_px=(0, 0), halo_after_px=(0, 0))
    weights_id = "other weights" if change == "weights" else "some weights"
    with pytest.raises(KeyboardInterrupt):
        _predict(_Counting(net, die_after=4), card, info, products, first, batch=1, weights_id=weights_id)
    second = _Counting(net)
    core_px = 48 if change == "core" else 32
    num_tiles = _predict(second, card, info, products, tiling(core_px), batch=1)["num_tiles"]
    assert second.num_windows == num_tiles
    np.testing.assert_array_equal(_read(products.map_path)[0], _whole(net, card, info))


class Overflows(nn.Module):
    """Answers with NaN in one class where the first band is bright: weights are finite."""

    def __init__(self, model: nn.Module, least: float) -> None:
        super().__init__()
        self.model, self.least = model, least

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        logits[:, 2:3][images[:, :1] > self.least] = torch.nan
        return logits


@pytest.mark.parametrize("confidence", [False, True])
def test_pixels_without_an_answer_are_nodata_and_counted(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings, confidence: bool
) -> None:
    products, bad = Products(tmp_path / "map.tif", confidence=confidence), Overflows(net, 5.0)
    with SceneReader(info) as reader:
        raster = reader.read(info.window)
    mean, std = card.statistics.mean[0], card.statistics.std[0]
    unanswered = raster.valid & ((raster.pixels[0].astype(float) - mean) / std > 5.0)
    assert 500 < unanswered.sum() < raster.valid.sum() / 2
    with pytest.raises(KeyboardInterrupt):
        _predict(_Counting(bad, die_after=20), card, info, products, tiling(32), batch=1)
    summary = _predict(bad, card, info, products, tiling(32), batch=1)
    assert summary["unanswered_px"] == unanswered.sum()  # of both runs
    expected = np.where(unanswered, NODATA, _whole(net, card, info))
    np.testing.assert_array_equal(_read(products.map_path)[0], expected)
    if confidence:
        assert (_read(products.confidence_path)[0][unanswered] == NODATA).all()
    assert not products.work_folder.exists()
    assert "unanswered_px" not in _predict(net, card, info, products, tiling(32))


def test_a_model_without_any_answer_is_refused(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    with pytest.raises(
        ModelError, match=r"no answer for .*scene\.tif: found NaN or infinity for every pixel"
    ):
        _predict(Overflows(net, -1e9), card, info, Products(tmp_path / "map.tif"), tiling(64))
    assert list(tmp_path.glob("*map*")) == []


def test_a_scene_of_nodata_is_refused_and_leaves_nothing(
    tmp_path: Path, write_raster: Callable[..., Path], net: nn.Module, card: Card, tiling: Tilings
) -> None:
    info = describe(write_raster("empty.tif", np.zeros((4, 40, 40), np.uint16), nodata=0))
    with pytest.raises(DataError, match=r"empty\.tif has nothing to predict"):
        _predict(net, card, info, Products(tmp_path / "out" / "map.tif"), tiling(16))
    assert not list((tmp_path / "out").iterdir()) if (tmp_path / "out").exists() else True


@pytest.mark.parametrize("core_px", [16, 64])
def test_inside_an_area_the_map_is_that_of_the_whole_scene(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings, core_px: int
) -> None:
    circle = shapely.Point(70, 80).buffer(31)
    inside = AreaOfInterest(tmp_path / "area.gpkg", np.array([circle]))
    folder = tmp_path / "out"
    products = Products(folder / "map.tif", confidence=True, polygons=folder / "map.gpkg", inside=inside)
    counting = _Counting(net)
    summary = _predict(counting, card, info, products, tiling(core_px), batch=1)
    found, counted = _read(products.map_path)[0], inside.mask(info.window)
    np.testing.assert_array_equal(found, np.where(counted, _whole(net, card, info), NODATA))
    assert (_read(products.confidence_path)[0][~counted] == NODATA).all()
    assert summary["aoi"] == str(inside.path)
    assert 0 < counting.num_windows < summary["num_tiles"]  # tiles outside are not computed
    bounds = pyogrio.read_info(products.polygons, force_total_bounds=True)["total_bounds"]
    assert bounds[2] - bounds[0] <= 2 * 62


def test_the_style_lies_beside_the_map(
    tmp_path: Path, net: nn.Module, card: Card, info: SceneInfo, tiling: Tilings
) -> None:
    products = Products(tmp_path / "map.tif")
    _predict(net, card, info, products, tiling(64))
    text = products.style_path.read_text()
    for each in card.classes:
        assert f'value="{each.value}"' in text
        assert f'label="{each.name}"' in text
