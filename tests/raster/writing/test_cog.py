import numpy as np
import pytest
import rasterio

from outsize.errors import DataError, OutputError
from outsize.raster import disk
from outsize.raster.writing import make_cog

RNG = np.random.default_rng(0)
GRID = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0.5, 500_000, 0.25, -10, 5_000_000)}


def write(path, pixels, **options):
    shape = {"count": pixels.shape[0], "height": pixels.shape[1], "width": pixels.shape[2]}
    with rasterio.open(path, "w", driver="GTiff", dtype=pixels.dtype, **{**shape, **GRID, **options}) as file:
        file.write(pixels)
    return path


def test_class_map(tmp_path):
    classes = RNG.integers(0, 6, (1, 1500, 1300), dtype=np.uint8)
    source = write(tmp_path / "work.tif", classes, nodata=255)
    colours = {0: (1, 2, 3), 5: (250, 0, 9)}
    target = tmp_path / "new" / "map.tif"
    make_cog(
        source,
        target,
        resampling="mode",
        colours=colours,
        nodata=255,
        band_names=("a < b",),
        tags={"k": "v & w"},
    )
    with rasterio.open(target) as file:
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.overviews(1)
        assert file.colormap(1)[5] == (250, 0, 9, 255)
        assert file.nodata == 255
        assert file.descriptions == ("a < b",)
        assert file.tags()["k"] == "v & w"
        assert (file.crs, file.transform) == (rasterio.crs.CRS.from_epsg(32632), GRID["transform"])
        np.testing.assert_array_equal(file.read(), classes)
    assert [path.name for path in target.parent.iterdir()] == ["map.tif"]


def test_overviews_of_class_ids_hold_class_ids(tmp_path):
    classes = np.zeros((1, 1500, 1300), np.uint8)
    classes[0, :, ::2] = 4
    make_cog(write(tmp_path / "work.tif", classes), tmp_path / "map.tif", resampling="mode")
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as file:
        assert set(np.unique(file.read())) <= {0, 4}


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_shares_of_four_classes_without_a_place(tmp_path, dtype):
    shares = RNG.integers(0, 250, (4, 600, 700)).astype(dtype)
    source = write(
        tmp_path / "work.tif",
        shares,
        crs=None,
        transform=rasterio.Affine.identity(),
        photometric="minisblack",
    )
    make_cog(source, tmp_path / "map.tif", resampling="average", band_names=("a", "b", "c", "d"))
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.descriptions == ("a", "b", "c", "d")
        assert rasterio.enums.ColorInterp.alpha not in file.colorinterp
        assert file.crs is None
        np.testing.assert_array_equal(file.read(), shares)


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    target = tmp_path / "map.tif"
    target.write_text("old")
    source = write(tmp_path / "work.tif", RNG.integers(0, 6, (1, 600, 600), dtype=np.uint8))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OutputError, match=r"map\.tif"):
        make_cog(source, target, resampling="mode")
    monkeypatch.undo()
    source.write_bytes(source.read_bytes()[:200_000])
    with pytest.raises((DataError, OutputError)):
        make_cog(source, target, resampling="mode")
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.tif", "work.tif"]
