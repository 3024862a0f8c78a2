"""What `predict` is given: folders, files of single bands, pictures without a place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image

from outsize.errors import DataError
from outsize.infer.inputs import bands_of, expand, open_inputs, open_stack
from outsize.job import ClassSpec, DataSection
from outsize.raster.reading import SceneReader
from outsize.runs import RunFolder

BANDS = ("red", "green", "nir")
CLASSES = (ClassSpec(name="a", value=0), ClassSpec(name="b", value=1))
DATA = DataSection(classes=CLASSES)


def draw(path: Path, value: int, name: str = "", epsg: int = 3857, size: int = 32) -> str:
    grid = rasterio.Affine(320 / size, 0, 1000, 0, -320 / size, 2000)
    form = {"driver": "GTiff", "height": size, "width": size, "count": 1, "dtype": "uint8"}
    with rasterio.open(path, "w", crs=f"EPSG:{epsg}", transform=grid, **form) as out:
        out.write(np.full((size, size), value, np.uint8), 1)
        if name:
            out.set_band_description(1, name)
    return str(path)


def values(text: str) -> list[int]:
    info = open_stack(text, BANDS, DATA)
    with SceneReader(info) as reader:
        return [int(each) for each in reader.read(info.window).pixels[:, 5, 5]]


def test_bands_are_stacked_in_the_order_of_the_model(tmp_path: Path) -> None:
    files = [draw(tmp_path / f"{name}.tif", number) for number, name in enumerate("abc", start=7)]
    assert values(",".join(files)) == [7, 8, 9]
    info = open_stack(", ".join(files), BANDS, DATA)
    assert info.band_names == BANDS
    assert info.path == Path(files[0])


def test_bands_may_be_named_in_any_order(tmp_path: Path) -> None:
    files = {name: draw(tmp_path / f"{name}.tif", number) for number, name in enumerate(BANDS, start=1)}
    assert values(f"nir={files['nir']},red={files['red']},green={files['green']}") == [1, 2, 3]


def test_a_coarser_band_is_made_finer(tmp_path: Path) -> None:
    files = [draw(tmp_path / "a.tif", 1), draw(tmp_path / "b.tif", 2, size=16), draw(tmp_path / "c.tif", 3)]
    assert values(",".join(files)) == [1, 2, 3]


@pytest.mark.parametrize("given", ["{0},{1}", "{0},{1},{2},{0}", "red={0},green={1}", "red={0},{1},{2}"])
def test_missing_bands_are_named(tmp_path: Path, given: str) -> None:
    files = [draw(tmp_path / f"{name}.tif", 1) for name in "abc"]
    with pytest.raises(DataError, match=r"--bands does not give .*needed 3: red, green, nir"):
        open_stack(given.format(*files), BANDS, DATA)


def test_a_file_that_says_it_is_another_band_is_refused(tmp_path: Path) -> None:
    files = [
        draw(tmp_path / "a.tif", 1, "nir"),
        draw(tmp_path / "b.tif", 2),
        draw(tmp_path / "c.tif", 3, "red"),
    ]
    with pytest.raises(DataError, match=r"a\.tif is another band .*found 'nir', needed band red"):
        open_stack(",".join(files), BANDS, DATA)


def test_bands_of_two_coordinate_systems_are_refused(tmp_path: Path) -> None:
    files = [
        draw(tmp_path / f"{name}.tif", 1, epsg=epsg)
        for name, epsg in zip("abc", (3857, 3857, 32633), strict=True)
    ]
    with pytest.raises(DataError, match=r"band nir .*c\.tif: found another coordinate system"):
        open_stack(",".join(files), BANDS, DATA)


def test_scenes_of_one_call_keep_their_own_coordinate_systems(tmp_path: Path) -> None:
    for name, epsg in (("a", 3857), ("b", 32633)):
        draw(tmp_path / f"{name}.tif", 1, epsg=epsg)
    infos = open_inputs([tmp_path], (), DATA, (), tmp_path)
    found = [rasterio.crs.CRS.from_wkt(info.georef.crs_wkt).to_epsg() for info in infos]
    assert found == [3857, 32633]


def test_a_folder_stands_for_the_images_in_it(tmp_path: Path) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    for name in ("b.JPG", "a.png", ".hidden.png"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "a.pgw").write_text("1\n0\n0\n-1\n5\n5\n")
    assert [path.name for path in expand([tmp_path / "in"], DATA)] == ["a.png", "b.JPG"]
    stacked = DATA.model_copy(update={"stack": {"red": "B04.tif"}})
    assert expand([tmp_path / "in"], stacked) == [tmp_path / "in"]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no image in .*found an empty folder"):
        expand([tmp_path], DATA)
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(DataError, match="found 1 other files"):
        expand([tmp_path], DATA)


def test_the_bands_of_a_run_are_those_of_its_card(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.best.parent.mkdir()
    run.best.with_suffix(".json").write_text(json.dumps({"bands": ["red", "nir"]}))
    assert bands_of(run) == ("red", "nir")
