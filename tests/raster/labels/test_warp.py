"""Labels and their scene: on one grid, brought onto it, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.warp import Resampling, calculate_default_transform, reproject

from outsize.errors import DataError
from outsize.raster.georef import same_crs
from outsize.raster.labels import is_made_of, lie_on_grid, warp_labels
from outsize.raster.reading import describe

GRID = rasterio.Affine(10, 0, 500_000, 0, -10, 5_500_000)


def write(path: Path, pixels: np.ndarray, transform: rasterio.Affine = GRID, crs: str = "EPSG:32632") -> Path:
    bands = pixels if pixels.ndim == 3 else pixels[None]
    count, height, width = bands.shape
    shape = {"count": count, "height": height, "width": width, "dtype": bands.dtype}
    with rasterio.open(path, "w", driver="GTiff", crs=crs, transform=transform, **shape) as file:
        file.write(bands)
    return path


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write(tmp_path / "scene.tif", np.ones((3, 120, 100), np.uint8))


def blobs(height: int, width: int) -> np.ndarray:
    return np.kron(np.arange(height * width // 100).reshape(height // 10, -1) % 3, np.ones((10, 10))).astype(
        np.uint8
    )


def test_the_same_grid_fits_also_with_rounding(tmp_path: Path, scene: Path) -> None:
    nudged = rasterio.Affine(10, 0, 500_000.01, 0, -10, 5_500_000)
    labels = write(tmp_path / "l.tif", blobs(120, 100), nudged)
    assert lie_on_grid(describe(labels), describe(scene))


def test_a_coordinate_system_is_known_by_any_of_its_names() -> None:
    full = rasterio.crs.CRS.from_epsg(3857)
    assert same_crs(full.to_wkt(), full.to_wkt(version="WKT2_2019"))
    assert not same_crs(full.to_wkt(), rasterio.crs.CRS.from_epsg(4326).to_wkt())
    assert not same_crs(full.to_wkt(), None)


@pytest.mark.parametrize(
    ("transform", "size", "message"),
    [
        (
            rasterio.Affine(20, 0, 500_000, 0, -20, 5_500_000),
            (60, 50),
            "another resolution.*2 times as large",
        ),
        (rasterio.Affine(10, 0, 500_005, 0, -10, 5_500_000), (120, 100), "corners 0.50 px away"),
        (rasterio.Affine(10, 0, 600_000, 0, -10, 5_500_000), (120, 100), "miss the scene.*10,000 px away"),
        (GRID, (120, 90), "found 120 x 90 px, needed 120 x 100 px"),
    ],
)
def test_another_grid_of_the_same_system_is_refused(
    tmp_path: Path, scene: Path, transform: rasterio.Affine, size: tuple[int, int], message: str
) -> None:
    labels = write(tmp_path / "l.tif", np.zeros(size, np.uint8), transform)
    with pytest.raises(DataError, match=message):
        lie_on_grid(describe(labels), describe(scene))


def test_labels_of_another_system_come_onto_the_grid(tmp_path: Path, scene: Path) -> None:
    truth = blobs(120, 100)
    truth[:10] = 255  # ignored, which is a value like any other here
    bounds = rasterio.transform.array_bounds(120, 100, GRID)
    there, width, height = calculate_default_transform("EPSG:32632", "EPSG:32633", 100, 120, *bounds)
    moved = np.full((height, width), 200, np.uint8)
    options = {
        "src_transform": GRID,
        "src_crs": "EPSG:32632",
        "dst_transform": there,
        "dst_crs": "EPSG:32633",
    }
    reproject(truth, moved, resampling=Resampling.nearest, init_dest_nodata=False, **options)
    labels = describe(write(tmp_path / "l.tif", moved, there, "EPSG:32633"))
    assert not lie_on_grid(labels, describe(scene))
    target = tmp_path / "cache" / "made.tif"
    warp_labels(labels, describe(scene), target, ignore_value=255, key="abc")
    with rasterio.open(target) as file:
        found = file.read(1)
        assert file.transform == GRID
        assert file.crs == rasterio.crs.CRS.from_epsg(32632)
        assert file.nodata == 255
    inner = (slice(12, -12), slice(12, -12))
    assert (found[inner] == truth[inner]).mean() > 0.9  # nearest twice: only borders of blobs may move
    assert set(np.unique(found[inner])) == {0, 1, 2}
    assert is_made_of(target, "abc")
    assert not is_made_of(target, "abd")
    assert sorted(path.name for path in target.parent.iterdir()) == ["made.tif"]


def test_other_resolution_across_systems_is_refused(tmp_path: Path, scene: Path) -> None:
    bounds = rasterio.transform.array_bounds(120, 100, GRID)
    there, width, height = calculate_default_transform(
        "EPSG:32632", "EPSG:4326", 100, 120, *bounds, resolution=3e-4
    )
    labels = describe(write(tmp_path / "l.tif", np.zeros((height, width), np.uint8), there, "EPSG:4326"))
    with pytest.raises(DataError, match="another resolution"):
        warp_labels(labels, describe(scene), tmp_path / "made.tif", ignore_value=255, key="")


def test_labels_elsewhere_across_systems_leave_nothing(tmp_path: Path, scene: Path) -> None:
    # 10 m in degrees at this latitude, but a degree further north
    there = rasterio.Affine(1.38e-4, 0, 9.0, 0, -9e-5, 50.6)
    labels = describe(write(tmp_path / "l.tif", np.ones((120, 100), np.uint8), there, "EPSG:4326"))
    with pytest.raises(DataError, match=r"l\.tif miss the scene"):
        warp_labels(labels, describe(scene), tmp_path / "made.tif", ignore_value=255, key="")
    assert not (tmp_path / "made.tif").exists()


def test_systems_that_cannot_be_brought_together_are_told(tmp_path: Path, scene: Path) -> None:
    local = 'LOCAL_CS["a building site",UNIT["metre",1]]'
    labels = describe(write(tmp_path / "l.tif", np.ones((120, 100), np.uint8), crs=local))
    with pytest.raises(DataError, match="coordinate systems that cannot be brought together"):
        warp_labels(labels, describe(scene), tmp_path / "made.tif", ignore_value=255, key="")
    assert not (tmp_path / "made.tif").exists()
