"""A prepared scene has the pixels, the place and the labels of the raw one, or a reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from pyogrio import raw as pyogrio_raw
from tests.conftest import WriteRaster

from outsize.errors import DataError
from outsize.prepare.piece import Facts
from outsize.prepare.scenes import RawScene, SceneSettings, prepare_scene, scene_piece
from outsize.raster.polygons import PolygonLabels
from outsize.raster.reading import SceneReader, describe

_SETTINGS = SceneSettings({1: (255, 0, 0), 2: (0, 255, 0)})
_PIXELS = np.arange(2 * 40 * 30, dtype=np.uint16).reshape(2, 40, 30)


def _prepare(to: Path, raw: RawScene, settings: SceneSettings = _SETTINGS) -> Facts:
    piece = scene_piece(raw, settings, "1")
    facts = piece.make(to)
    assert sorted(facts) == sorted(piece.outputs) == sorted(path.name for path in to.iterdir())
    return facts


def _read(path: Path) -> tuple[Any, Any]:
    info = describe(path)
    with SceneReader(info) as reader:
        raster = reader.read(info.window)
    return raster.pixels, raster.valid


def test_pixels_names_and_place_are_those_of_the_raw_scene(write_raster: WriteRaster, tmp_path: Path) -> None:
    raw = write_raster("raw.tif", _PIXELS, ("red", "nir"))
    facts = _prepare(tmp_path / "to", RawScene("a", raw))["a.tif"]
    info, before = describe(tmp_path / "to" / "a.tif"), describe(raw)
    assert (info.georef, info.band_names, info.always_valid) == (before.georef, ("red", "nir"), True)
    assert (_read(info.path)[0] == _PIXELS).all()
    assert (facts["pixels"], facts["valid"], facts["bands"]) == (1200, 1200, ["red", "nir"])
    assert facts["mean"] == pytest.approx(_PIXELS.mean((1, 2)))
    assert facts["std"] == pytest.approx(_PIXELS.std((1, 2)))
    assert (facts["min"], facts["max"]) == ([0, 1200], [1199, 2399])


def test_a_large_scene_is_tiled_with_overviews(write_raster: WriteRaster, tmp_path: Path) -> None:
    _prepare(tmp_path / "to", RawScene("a", write_raster("raw.tif", np.ones((1100, 600), np.uint8))))
    with rasterio.open(tmp_path / "to" / "a.tif") as file:
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.block_shapes == [(512, 512)]
        assert file.overviews(1) == [2, 4]


def test_whatever_made_a_pixel_invalid_a_mask_says_so(write_raster: WriteRaster, tmp_path: Path) -> None:
    raw = write_raster("raw.tif", _PIXELS + np.uint16(1), nodata=7)
    facts = _prepare(tmp_path / "to", RawScene("a", raw))["a.tif"]
    (pixels, valid), (before, valid_before) = _read(tmp_path / "to" / "a.tif"), _read(raw)
    assert (valid == valid_before).all()
    assert (pixels == before).all()
    assert facts["valid"] == valid.sum() == 1199


def test_bands_of_one_file_each_become_one_file(write_raster: WriteRaster, tmp_path: Path) -> None:
    files = {name: write_raster(f"{name}.tif", _PIXELS[number]) for number, name in enumerate(("red", "nir"))}
    _prepare(tmp_path / "to", RawScene("a", tmp_path / "a", bands=files))
    assert (_read(tmp_path / "to" / "a.tif")[0] == _PIXELS).all()
    assert describe(tmp_path / "to" / "a.tif").band_names == ("red", "nir")


def test_polygons_and_rasters_become_rasters_of_values(write_raster: WriteRaster, tmp_path: Path) -> None:
    raw = write_raster("raw.tif", _PIXELS)
    left, right = shapely.box(5e5, 5e6 - 80, 5e5 + 20, 5e6), shapely.box(5e5 + 20, 5e6 - 40, 5e5 + 60, 5e6)
    pyogrio_raw.write(
        tmp_path / "l.gpkg",
        shapely.to_wkb([left, right]),
        [np.array(["a", "b"], object)],
        ["kind"],
        geometry_type="Polygon",
        crs="EPSG:32632",
    )
    polygons = PolygonLabels(tmp_path / "l.gpkg", None, "kind", {"a": 1, "b": 2}, None)
    facts = _prepare(tmp_path / "polygons", RawScene("a", raw, labels=polygons))
    wanted = np.full((40, 30), 255, np.uint8)
    wanted[:, :10], wanted[:20, 10:] = 1, 2
    assert (_read(tmp_path / "polygons" / "a_labels.tif")[0][0] == np.where(wanted == 255, 0, wanted)).all()
    assert facts["a_labels.tif"] == {"classes": {"1": 400, "2": 400, "255": 400}}
    labels = write_raster("l.tif", wanted)
    assert _prepare(tmp_path / "raster", RawScene("a", raw, labels=labels)) == facts
    same = [(tmp_path / way / "a_labels.tif").read_bytes() for way in ("polygons", "raster")]
    assert same[0] == same[1]


def test_another_coordinate_system_has_the_same_places(write_raster: WriteRaster, tmp_path: Path) -> None:
    """A square of ones on the ground: image and labels say so of the same pixels, in either system."""
    ones = np.ones((200, 200), np.uint8)
    ones[50:100, 60:120] = 2
    raw, labels = write_raster("raw.tif", ones), write_raster("l.tif", ones)
    settings = SceneSettings(_SETTINGS.colours, crs="EPSG:32633", resampling="nearest")
    facts = _prepare(tmp_path / "to", RawScene("a", raw, labels=labels), settings)
    info = describe(tmp_path / "to" / "a.tif")
    assert rasterio.crs.CRS.from_wkt(info.georef.crs_wkt) == "EPSG:32633"
    (pixels, valid), (values, known) = _read(info.path), _read(tmp_path / "to" / "a_labels.tif")
    both = valid & known
    assert both.sum() > 0.95 * known.sum() > 35_000
    assert (pixels[0] == values[0])[both].mean() > 0.995  # but for what lies between two pixels
    assert not valid.all()  # it is turned
    assert facts["a.tif"]["valid"] == valid.sum()
    assert facts["a.tif"]["max"] == [2.0]


def test_a_scene_that_is_in_that_system_is_not_touched(write_raster: WriteRaster, tmp_path: Path) -> None:
    settings = SceneSettings(_SETTINGS.colours, crs="EPSG:32632")
    _prepare(tmp_path / "to", RawScene("a", write_raster("raw.tif", _PIXELS)), settings)
    assert (_read(tmp_path / "to" / "a.tif")[0] == _PIXELS).all()


def _nan(write: WriteRaster) -> RawScene:
    return RawScene("a", write("raw.tif", np.full((20, 20), np.nan, np.float32)))


def _cut(write: WriteRaster) -> RawScene:
    path = write("raw.tif", np.random.default_rng(0).integers(0, 255, (200, 200)).astype(np.uint8))
    path.write_bytes(path.read_bytes()[:-9000])
    return RawScene("a", path)


def _unknown(write: WriteRaster) -> RawScene:
    return RawScene("a", write("raw.tif", _PIXELS), labels=write("l.tif", np.full((40, 30), 9, np.uint8)))


def _small(write: WriteRaster) -> RawScene:
    return RawScene("a", write("raw.tif", _PIXELS), labels=write("l.tif", np.ones((30, 30), np.uint8)))


def _colours(write: WriteRaster) -> RawScene:
    return RawScene("a", write("raw.tif", _PIXELS), labels=write("l.tif", np.ones((3, 40, 30), np.uint8)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_nan, "holds values that are no numbers"),
        (_cut, "truncated"),
        (_unknown, "values in no class: found 9, needed one of 1, 2"),
        (_small, "do not fit their image"),
        (_colours, "are colours: found 3 bands"),
    ],
)
def test_what_is_wrong_with_a_scene_is_said_in_one_line(
    write_raster: WriteRaster, tmp_path: Path, make: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        prepare_scene(make(write_raster), _SETTINGS, tmp_path / "to")


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_without_a_place_nothing_can_be_reprojected(tmp_path: Path) -> None:
    with rasterio.open(
        tmp_path / "a.tif", "w", driver="GTiff", dtype="uint8", count=1, height=9, width=9
    ) as file:
        file.write(np.ones((1, 9, 9), np.uint8))
    with pytest.raises(DataError, match="cannot be reprojected: found none in the file"):
        prepare_scene(RawScene("b", tmp_path / "a.tif"), SceneSettings({}, crs="EPSG:32633"), tmp_path / "to")
