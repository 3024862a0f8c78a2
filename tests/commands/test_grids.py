"""Scenes of two UTM zones and in degrees are trained on together, and each is predicted on its own grid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyogrio
import pyproj
import pytest
import rasterio
import shapely
from rasterio.features import rasterize
from tests.commands.tiny_jobs import job_tail

Run = Callable[..., object]
SHAPE = (56, 72)
# about 2 m on Earth in each of them
GRIDS = {
    "west": ("EPSG:32632", (2.0, 0.0, 690_000.0, 0.0, -2.0, 5_300_000.0)),
    "east": ("EPSG:32633", (2.0, 0.0, 310_000.0, 0.0, -2.0, 5_300_000.0)),
    "degrees": ("EPSG:4326", (2.7e-5, 0.0, 12.1, 0.0, -1.8e-5, 47.8)),
}
JOB = """
run = "{folder}/run"
[data]
train = ["west.tif", "east.tif", "degrees.tif"]
val = ["val/west.tif", "val/east.tif", "val/degrees.tif"]
bands = ["red", "nir"]
{labels}
"""
TAIL = job_tail(field=1, house=2) + "samples_per_epoch = 6\n"


def _write(path: Path, grid: str, seed: int) -> None:
    """Write a scene and its labels, as a raster and as polygons in degrees."""
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(1, 3, (7, 9)), np.ones((8, 8))).astype(np.uint8)
    pixels = rng.integers(1, 60, (2, *SHAPE)).astype(np.uint8) + 80 * (labels == [[[1]], [[2]]])
    crs, transform = GRIDS[grid]
    place = {"crs": crs, "transform": rasterio.Affine(*transform), "height": SHAPE[0], "width": SHAPE[1]}
    for end, bands in (("", pixels.astype(np.uint8)), ("_labels", labels[None])):
        name = path.with_name(f"{path.stem}{end}.tif")
        with rasterio.open(name, "w", driver="GTiff", dtype="uint8", count=len(bands), **place) as file:
            file.write(bands)
            file.descriptions = ("red", "nir") if end == "" else ("class",)
    to_degrees = pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    shapes = []
    for row, col in np.argwhere(labels[::8, ::8] == 2) * 8:
        corners = [(row, col), (row, col + 8), (row + 8, col + 8), (row + 8, col)]
        points = [place["transform"] @ (float(c), float(r)) for r, c in corners]
        shapes.append(shapely.Polygon([to_degrees.transform(*point) for point in points]))
    wkb = shapely.to_wkb(np.array(shapes))
    pyogrio.raw.write(path.with_suffix(".gpkg"), wkb, [], [], geometry_type="Polygon", crs="EPSG:4326")


@pytest.fixture(params=["rasters", "polygons in degrees"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "val").mkdir()
    for number, grid in enumerate(GRIDS):
        _write(tmp_path / f"{grid}.tif", grid, number)
        _write(tmp_path / "val" / f"{grid}.tif", grid, 10 + number)
    keys = 'labels = "{stem}.gpkg"\nall_polygons = "house"\noutside = "field"'
    labels = "" if request.param == "rasters" else keys
    (tmp_path / "job.toml").write_text(JOB.format(folder=tmp_path, labels=labels) + TAIL)
    return tmp_path / "job.toml"


def test_three_grids_in_one_training(run: Run, job: Path) -> None:
    folder = job.parent
    checked = run("check", job)
    assert checked.code == 0, checked.err
    done = run("train", job)
    assert done.code == 0, done.err
    data = json.loads((folder / "run" / "data.json").read_text())
    truth = sum(int((_read(folder / f"{grid}_labels.tif") == 2).sum()) for grid in GRIDS)
    assert data["class_px"]["train"][1] == truth  # polygons in degrees fell on the very same pixels
    done = run("predict", folder / "run", *(folder / f"{grid}.tif" for grid in GRIDS))
    assert done.code == 0, done.err
    assert "warning" not in done.out  # degrees and metres are not compared as plain numbers
    for grid in GRIDS:
        _look_at(folder / "run" / "predictions", grid)


def _look_at(folder: Path, grid: str) -> None:
    """See that map and polygons of a scene lie on its grid, and that areas are those on Earth."""
    crs, transform = GRIDS[grid]
    with rasterio.open(folder / f"{grid}.tif") as file:
        classes = file.read(1)
        assert file.crs == rasterio.crs.CRS.from_string(crs)
        assert tuple(file.transform)[:6] == pytest.approx(transform, rel=0, abs=1e-12)
    meta, _, geometry, (values, areas) = pyogrio.raw.read(
        folder / f"{grid}.gpkg", columns=["value", "area_m2"]
    )
    assert meta["crs"] == crs
    shapes = shapely.from_wkb(geometry)
    affine = rasterio.Affine(*transform)
    burnt = rasterize(zip(shapes, values, strict=True), out_shape=SHAPE, transform=affine, dtype="uint8")
    np.testing.assert_array_equal(burnt, classes)
    x, y = affine @ (np.array([0.0, 72, 72, 0]), np.array([0.0, 0, 56, 56]))
    lon, lat = pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform(x, y)
    whole_m2 = abs(pyproj.Geod(ellps="WGS84").polygon_area_perimeter(lon, lat)[0])
    assert areas.sum() == pytest.approx(whole_m2, rel=1e-4)


def _read(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        return file.read(1)
