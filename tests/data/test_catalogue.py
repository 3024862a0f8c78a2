"""All data of a job opened in one call, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from PIL import Image

from outsize.data.catalogue import open_data
from outsize.data.sample import IGNORE
from outsize.data.scenes import label_table, read_labels
from outsize.errors import DataError, JobError
from outsize.job import DataSection
from outsize.raster.reading import SceneReader

WriteRaster = Callable[..., Path]
CLASSES = [{"name": "ground", "value": 0}, {"name": "house", "value": 1}]


def section(**keys: Any) -> DataSection:
    return DataSection.model_validate({"classes": CLASSES, **keys})


def opened(tmp_path: Path, **keys: Any) -> Any:
    return open_data(section(**keys), seed=0, halo_px=8, cache=tmp_path / "labels")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twin folders of ten pictures with indexed masks."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number in range(10):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
            tmp_path / f"images/{number}.png"
        )
        mask = Image.fromarray(rng.integers(0, 2, (20, 30), dtype=np.uint8), mode="P")
        mask.putpalette([255, 0, 0, 0, 255, 0])
        mask.save(tmp_path / f"masks/{number}.png")
    return tmp_path


def folders(tmp_path: Path, **keys: Any) -> Any:
    names = {"format": "folders", "images": [f"{tmp_path}/images/*.png"], "labels": "../masks/{stem}.png"}
    return opened(tmp_path, **{**names, **keys})


def test_twin_folders_and_palettes(pictures: Path) -> None:
    splits = folders(pictures)
    assert [len(scenes) for _, scenes in splits.items()] == [6, 2, 2]
    scene = splits.train[0]
    with SceneReader(scene.labels) as reader:
        classes = read_labels(reader, scene.labels.window, label_table([0, 1], 255))
    assert (classes == np.asarray(Image.open(scene.labels.path))).all()


def test_masks_side_by_side(pictures: Path) -> None:
    for number in range(10):
        (pictures / f"masks/{number}.png").rename(pictures / f"images/{number}_mask.png")
    splits = folders(pictures, labels="{stem}_mask.png")
    assert sum(len(scenes) for _, scenes in splits.items()) == 10


def test_missing_pairs_are_named(pictures: Path) -> None:
    (pictures / "masks/3.png").unlink()
    (pictures / "masks/7.png").unlink()
    with pytest.raises(
        DataError, match=r"images/\d\.png are missing: found no .*/\d\.png, and those of 1 more of 10"
    ):
        folders(pictures)


def test_colours_are_no_classes(pictures: Path) -> None:
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(pictures / "masks/3.png")
    with pytest.raises(DataError, match=r"masks/3\.png are colours: found 3 bands, needed one band"):
        folders(pictures)


def test_a_mask_of_another_size_is_refused_even_where_some_may_be_set_aside(pictures: Path) -> None:
    Image.fromarray(np.zeros((20, 31), np.uint8)).save(pictures / "masks/3.png")
    with pytest.raises(DataError, match=r"3\.png.*found 20 x 31 px, needed 20 x 30 px"):
        folders(pictures, max_bad_share=0.5)


def test_corrupt_pictures_are_set_aside_up_to_a_share(pictures: Path) -> None:
    (pictures / "images/4.png").write_bytes(b"no picture at all, just words" * 3)
    with pytest.raises(DataError, match=r"4\.png"):
        folders(pictures)
    splits = folders(pictures, max_bad_share=0.1)
    assert [bad.path.name for bad in splits.set_aside] == ["4.png"]
    assert sum(len(scenes) for _, scenes in splits.items()) == 9
    (pictures / "masks/5.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"2 of 10 images cannot be read: .*needed at most 10.0% of them"):
        folders(pictures, max_bad_share=0.1)


def test_a_bad_picture_moves_no_other_to_another_split(pictures: Path) -> None:
    before = {scene.image.path: split for split, scenes in folders(pictures).items() for scene in scenes}
    (pictures / "images/4.png").write_bytes(b"x" * 99)
    after = folders(pictures, max_bad_share=0.1)
    assert all(before[scene.image.path] == split for split, scenes in after.items() for scene in scenes)


def test_lists_and_images_exclude_each_other(pictures: Path) -> None:
    with pytest.raises(JobError, match="not clear which images to use: found both"):
        folders(pictures, train=["x.png"])
    with pytest.raises(JobError, match="not clear which images to use: found neither"):
        folders(pictures, images=[])
    with pytest.raises(JobError, match=r"nothing to train on: found no data\.train"):
        folders(pictures, images=[], test=["x.png"])


def test_a_list_that_leaks_is_refused(pictures: Path) -> None:
    names = [f"{pictures}/images/{number}.png" for number in range(3)]
    splits = folders(pictures, images=[], train=names[:2], test=names[2:])
    assert [len(scenes) for _, scenes in splits.items()] == [2, 0, 1]
    with pytest.raises(DataError, match=r"1\.png leaks: found it is in train and test"):
        folders(pictures, images=[], train=names[:2], test=names[1:])


def polygons(path: Path, boxes: list[tuple[int, int, int, int]], kinds: list[str]) -> None:
    """Write boxes (row, col, row_end, col_end) on the grid of `write_raster`."""
    shapes = [shapely.box(5e5 + 2 * c, 5e6 - 2 * rr, 5e5 + 2 * cc, 5e6 - 2 * r) for r, c, rr, cc in boxes]
    column = np.array(kinds, object)
    wkb = shapely.to_wkb(np.array(shapes))
    pyogrio.raw.write(path, wkb, [column], ["kind"], geometry_type="Polygon", crs="EPSG:32632")


def test_polygons_are_burnt_once(write_raster: WriteRaster, tmp_path: Path) -> None:
    write_raster("a.tif", np.ones((1, 64, 96), np.uint8))
    polygons(tmp_path / "a.gpkg", [(8, 16, 24, 48)], ["House"])
    keys = {"train": [f"{tmp_path}/a.tif"], "labels": "{stem}.gpkg", "attribute": "kind", "outside": "ground"}
    keys["classes"] = [CLASSES[0], {**CLASSES[1], "attribute": "House"}]
    scene = opened(tmp_path, **keys).train[0]
    assert scene.labels.path.parent == tmp_path / "labels"
    with rasterio.open(scene.labels.path) as file:
        found = file.read(1)
    assert found.sum() == found[8:24, 16:48].sum() == 16 * 32
    made = scene.labels.path.stat().st_mtime_ns
    assert opened(tmp_path, **keys).train[0].labels.path.stat().st_mtime_ns == made
    (tmp_path / "a.gpkg").unlink()
    polygons(tmp_path / "a.gpkg", [(0, 0, 10, 10)], ["House"])
    with rasterio.open(opened(tmp_path, **keys).train[0].labels.path) as file:
        assert file.read(1).sum() == 100
    del keys["outside"]
    with rasterio.open(opened(tmp_path, **keys).train[0].labels.path) as file:
        assert np.unique(file.read(1)).tolist() == [1, IGNORE]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "have no class: found neither, needed data.attribute or data.all_polygons; .*kind"),
        ({"attribute": "kind", "all_polygons": "house"}, "found both"),
        (
            {"all_polygons": "huose"},
            "data.all_polygons names no class: found 'huose', .*did you mean 'house'",
        ),
    ],
)
def test_polygons_need_one_meaning(
    write_raster: WriteRaster, tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    write_raster("a.tif", np.ones((1, 64, 96), np.uint8))
    polygons(tmp_path / "a.gpkg", [(8, 16, 24, 48)], ["house"])
    with pytest.raises(JobError, match=message):
        opened(tmp_path, train=[f"{tmp_path}/a.tif"], labels="{stem}.gpkg", **keys)


def test_blocks_of_one_scene(write_raster: WriteRaster, tmp_path: Path) -> None:
    write_raster("a.tif", np.ones((1, 256, 256), np.uint8))
    polygons(tmp_path / "all.gpkg", [(8, 16, 24, 48)], ["x"])
    keys = {
        "images": [f"{tmp_path}/a.tif"],
        "labels": "all.gpkg",
        "all_polygons": "house",
        "outside": "ground",
    }
    splits = opened(tmp_path, **keys, split={"by": "blocks", "block_px": 64})
    assert all(scenes[0].areas for _, scenes in splits.items())
    near = opened(tmp_path, **keys, split={"by": "blocks", "block_px": 64, "gap_px": 0})
    num_px = [
        sum(a.num_px for _, held in each.items() for s in held for a in s.areas) for each in (splits, near)
    ]
    assert num_px[0] < num_px[1] == 256 * 256


def test_a_stack_is_named_by_one_of_its_bands(write_raster: WriteRaster, tmp_path: Path) -> None:
    for name in ("s_B02", "s_B03"):
        write_raster(f"{name}.tif", np.full((1, 64, 96), 5, np.uint8))
    write_raster("s_labels.tif", np.zeros((64, 96), np.uint8))
    stack = {"blue": "{stem}_B02.tif", "green": "{stem}_B03.tif"}
    scene = opened(tmp_path, train=[f"{tmp_path}/*_B02.tif"], stack=stack).train[0]
    assert scene.image.band_names == ("blue", "green")
    assert opened(tmp_path, train=[f"{tmp_path}/*_B02.tif"], stack=stack, bands=["green", "blue"]).train[
        0
    ].image.band_names == ("green", "blue")
    with pytest.raises(DataError, match=r"band red of .*s_B02\.tif is not clear"):
        opened(tmp_path, train=[f"{tmp_path}/*_B02.tif"], stack={**stack, "red": "*_B0?.tif"})
    with pytest.raises(JobError, match=r"data\.bands and data\.stack differ"):
        opened(tmp_path, train=[f"{tmp_path}/*_B02.tif"], stack=stack, bands=["green", "red"])


def test_a_stack_may_be_a_folder(write_raster: WriteRaster, tmp_path: Path) -> None:
    for scene in ("one", "two"):
        (tmp_path / scene).mkdir()
        for band in ("B02", "B03"):
            write_raster(f"{scene}/T32_{band}.tif", np.full((1, 64, 96), len(scene), np.uint8))
        write_raster(f"{scene}_labels.tif", np.zeros((64, 96), np.uint8))
    stack = {"blue": "*_B02.tif", "green": "*_B03.tif"}
    splits = opened(tmp_path, train=[f"{tmp_path}/one", f"{tmp_path}/tw*"], stack=stack)
    assert [scene.image.path.name for scene in splits.train] == ["one", "two"]
    assert splits.train[1].image.num_bands == 2


def test_each_scene_keeps_its_own_grid(tmp_path: Path) -> None:
    for name, crs, res in (("a", "EPSG:32632", 10), ("b", "EPSG:32633", 10), ("c", "EPSG:4326", 1e-4)):
        grid = rasterio.Affine(res, 0, 15, 0, -res, 50)
        profile = {"driver": "GTiff", "dtype": "uint8", "count": 1, "height": 32, "width": 32}
        for end in ("", "_labels"):
            with rasterio.open(
                tmp_path / f"{name}{end}.tif", "w", crs=crs, transform=grid, **profile
            ) as file:
                file.write(np.ones((1, 32, 32), np.uint8))
    names = [f"{tmp_path}/{name}.tif" for name in "abc"]
    splits = opened(tmp_path, train=names)
    assert len({scene.image.georef.crs_wkt for scene in splits.train}) == 3
    assert not (tmp_path / "labels").exists()  # nothing had to be made
