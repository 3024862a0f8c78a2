"""Objects come the same out of every layout, and what is wrong with one is said in a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from tests.data.instances_pictures import (
    PLACES,
    SIZE,
    draw_coco,
    draw_ids,
    draw_masks,
    draw_scene,
    mask_of,
    photo,
    section,
)

from outsize.data.catalogue import find_data, look_around, make_splits
from outsize.data.formats.ids import objects_of_ids
from outsize.data.formats.masks import class_in_name
from outsize.data.object_files import ObjectFiles, load_objects
from outsize.data.recall import recall_scenes
from outsize.data.scenes import LabelledScene
from outsize.data.split import write_split
from outsize.errors import DataError, JobError
from outsize.job import DataSection
from outsize.raster.reading import SceneReader
from outsize.tiles.window import Window


def opened(data: DataSection, cache: Path) -> list[LabelledScene]:
    return list(find_data(data, seed=0, cache=cache).scenes.values())


def told(scene: LabelledScene) -> list[tuple[int, Window, bool]]:
    assert scene.objects is not None
    return [(each.class_id, each.window, each.clipped) for each in load_objects(scene.objects).all()]


def labels_of(scene: LabelledScene) -> np.ndarray:
    with SceneReader(scene.labels) as reader:
        raster = reader.read(scene.labels.window)
    return np.where(raster.valid, raster.pixels[0], 255)


def test_masks_in_folders(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data")
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    scenes = opened(data, tmp_path / "cache")
    assert len(scenes) == 4
    wanted = [(0, PLACES[1], False), (0, PLACES[2], False), (1, PLACES[0], False)]
    assert sorted(told(scenes[0]), key=str) == sorted(wanted, key=str)
    labels = labels_of(scenes[0])
    assert labels[PLACES[0].slices].tolist() == np.full((10, 12), 2).tolist()
    assert np.count_nonzero(labels == 255) == labels.size - sum(place.num_px for place in PLACES)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("a-house-1", "house"), ("a-side-road-12", "side-road"), ("a-house", ""), ("b-house-1", "")],
)
def test_a_class_is_what_stands_between_picture_and_number(stem: str, name: str) -> None:
    assert class_in_name(stem, "a") == name


def test_a_class_that_the_job_does_not_list_is_named_with_its_nearest(tmp_path: Path) -> None:
    draw_masks(tmp_path, 1)
    data = section("house", "side road", format="masks", root=str(tmp_path), labels="")
    with pytest.raises(JobError, match=r"a-0-side-road-1\.png .* 'side-road', .*nearest: 'side road'"):
        find_data(data, seed=0, cache=tmp_path / "cache")


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 4)
    Image.fromarray(np.ones((47, 64), np.uint8)).save(tmp_path / "data/a-1/a-1-house-9.png")
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    with pytest.raises(
        DataError, match=r"a-1-house-9\.png does not fit .*found 47 x 64 px, needed 48 x 64 px"
    ):
        find_data(data, seed=0, cache=tmp_path / "cache")


def test_an_empty_mask_is_refused(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 4)
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "data/a-1/a-1-house-9.png")
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    with pytest.raises(DataError, match=r"a-1-house-9\.png is empty"):
        find_data(data, seed=0, cache=tmp_path / "cache")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    data = section("house", format="masks", root=str(tmp_path), labels="")
    with pytest.raises(DataError, match="no picture below"):
        find_data(data, seed=0, cache=tmp_path / "cache")
    absent = section("house", format="masks", root=str(tmp_path / "no"), labels="")
    with pytest.raises(DataError, match="no such folder"):
        find_data(absent, seed=0, cache=tmp_path / "cache")


def test_a_misnamed_mask_is_no_background(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 4)
    (tmp_path / "data/a-1/a-1-house-2.png").rename(tmp_path / "data/a-1/house-2.png")
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    with pytest.raises(DataError, match=r"holds other pictures: found house-2\.png"):
        find_data(data, seed=0, cache=tmp_path / "cache")


def test_pictures_without_masks_are_learnt_as_empty_and_named(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 4)
    for name in ("b", "previews"):
        (tmp_path / "data" / name).mkdir()
    Image.fromarray(photo(9)).save(tmp_path / "data/b/b.png")
    Image.fromarray(photo(8)).save(tmp_path / "data/previews/all.png")
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    survey = find_data(data, seed=0, cache=tmp_path / "cache")
    assert told(survey.scenes[tmp_path / "data/b/b.png"]) == []
    assert any("no mask" in note and "b" in note for note in survey.notes)
    assert any("passed over: previews" in note for note in survey.notes)


def test_pictures_of_ids(tmp_path: Path) -> None:
    draw_ids(tmp_path / "data")
    keys = {"format": "folders", "images": str(tmp_path / "data/images/*.png")}
    scenes = opened(section("cell", labels="../labels/{stem}.png", **keys), tmp_path / "cache")
    found = told(scenes[0])
    assert [window for _, window, _ in found[1:]] == list(PLACES[1:])
    assert found[0][1] == Window(0, 0, PLACES[0].row_end, PLACES[0].col_end)  # in two parts
    with pytest.raises(JobError, match="2 classes"):
        opened(section("cell", "tissue", labels="../labels/{stem}.png", **keys), tmp_path / "cache")


def test_ids_are_joined_across_strips() -> None:
    rng = np.random.default_rng(0)
    ids = np.zeros((40, 30), np.int64)
    for number in range(1, 9):
        row, col = rng.integers(30), rng.integers(22)
        ids[row : row + 9, col : col + 7] = number * 10**9
    whole = objects_of_ids([(Window(0, 0, 40, 30), ids)], 0)
    strips = [
        (Window(row, 0, 7, 30).intersect(Window(0, 0, 40, 30)), ids[row : row + 7]) for row in range(0, 40, 7)
    ]
    parts = objects_of_ids(strips, 0)
    assert [each.window for each in parts] == [each.window for each in whole]
    assert all(np.array_equal(one.mask, other.mask) for one, other in zip(parts, whole, strict=True))


def test_ids_in_a_raster_of_many_objects(tmp_path: Path) -> None:
    ids = np.zeros((64, 64), np.int32)
    ids[3:9, 4:9], ids[30:40, 30:44] = 70_000, 70_001
    for name, pixels in (("a.tif", ids.astype(np.uint8)), ("a_ids.tif", ids)):
        form = {"driver": "GTiff", "height": 64, "width": 64, "count": 1, "dtype": pixels.dtype}
        with rasterio.open(
            tmp_path / name, "w", crs="EPSG:3857", transform=rasterio.Affine(1, 0, 5, 0, -1, 9), **form
        ) as out:
            out.write(pixels, 1)
    data = section("cell", train=(str(tmp_path / "a.tif"),), labels="{stem}_ids.tif")
    scene = opened(data, tmp_path / "cache")[0]
    assert [window for _, window, _ in told(scene)] == [Window(3, 4, 6, 5), Window(30, 30, 10, 14)]


def test_numbers_below_zero_are_no_ids(tmp_path: Path) -> None:
    ids = np.zeros((32, 32), np.int16)
    ids[:4] = -1
    form = {"driver": "GTiff", "height": 32, "width": 32, "count": 1, "crs": "EPSG:3857"}
    for name, pixels in (("a.tif", ids.astype(np.uint8)), ("a_ids.tif", ids)):
        grid = rasterio.Affine(1, 0, 5, 0, -1, 9)
        with rasterio.open(tmp_path / name, "w", transform=grid, dtype=pixels.dtype, **form) as out:
            out.write(pixels, 1)
    data = section("cell", train=(str(tmp_path / "a.tif"),), labels="{stem}_ids.tif")
    with pytest.raises(DataError, match=r"a_ids\.tif holds what is no id: found -1"):
        opened(data, tmp_path / "cache")


def test_objects_are_for_their_task_alone() -> None:
    from outsize.job import check_job

    classes = [{"name": "a", "value": 0}, {"name": "b", "value": 1}]
    with pytest.raises(JobError, match=r"data\.objects is not for this task"):
        check_job({"data": {"objects": True, "classes": classes}}, "job")
    with pytest.raises(JobError, match="at least 2 classes"):
        check_job({"data": {"classes": classes[:1]}}, "job")
    one = check_job({"task": "instances", "data": {"classes": classes[:1]}}, "job")
    assert one.data.objects
    assert check_job(one.model_dump(mode="json"), "job") == one


def test_a_coco_file(tmp_path: Path) -> None:
    draw_coco(tmp_path / "data")
    data = section(
        "house", "side-road", format="coco", root=str(tmp_path / "data"), labels="annotations.json"
    )
    scene = next(each for each in opened(data, tmp_path / "cache") if each.image.path.stem == "0")
    assert told(scene) == [(1, PLACES[0], False), (0, PLACES[1], False), (-1, PLACES[2], False)]
    assert scene.objects is not None
    held = load_objects(scene.objects)
    assert (held.num_objects, int(held.num_lost)) == (2, 1)


def test_a_class_map_leaves_out_what_is_background(tmp_path: Path) -> None:
    from outsize.job import check_job

    tree = {"task": "instances", "data": {"format": "coco", "class_map": "taco-2"}}
    assert [each.name for each in check_job(tree, "job").data.classes] == ["Bottle", "Can"]


def test_polygons_on_a_scene(tmp_path: Path) -> None:
    drawn = draw_scene(tmp_path)
    keys = {"train": (str(tmp_path / "scene.tif"),), "labels": "{stem}.geojson", "attribute": "kind"}
    scene = opened(section("house", "side-road", **keys), tmp_path / "cache")[0]
    wanted = [(0 if name == "house" else 1, place) for name, place in drawn[:2]]
    found = told(scene)
    assert [(kind, window) for kind, window, _ in found[:2]] == wanted
    assert [clipped for _, _, clipped in found] == [False, False, True]
    assert found[2][1] == Window(100, 150, 20, 10)
    assert scene.objects is not None
    whole = scene.image.window
    shown, _ = ObjectFiles().in_window(scene.objects, whole, np.ones((whole.height, whole.width), np.bool_))
    assert not any(each.clipped for each in shown)  # the scene's edge cuts it in every picture
    assert labels_of(scene)[drawn[1][1].slices].tolist() == np.full((12, 30), 2).tolist()


def test_what_was_made_is_kept_until_it_changes(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 4)
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    first = opened(data, tmp_path / "cache")[0]
    assert first.objects is not None
    before = first.objects.stat().st_mtime_ns
    assert opened(data, tmp_path / "cache")[0].objects == first.objects
    assert first.objects.stat().st_mtime_ns == before
    Image.fromarray(mask_of(Window(0, 0, 2, 2)).astype(np.uint8)).save(tmp_path / "data/a-0/a-0-house-7.png")
    assert len(told(opened(data, tmp_path / "cache")[0])) == 4


def test_a_split_holds_a_seeded_share_out_and_comes_back(tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 8)
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    survey = find_data(data, seed=3, cache=tmp_path / "cache")
    splits = make_splits(survey, data, seed=3, halo_px=0)
    write_split(tmp_path / "split.json", splits)
    assert [len(scenes) for _, scenes in splits.items()] == [6, 1, 1]
    back = recall_scenes(tmp_path / "split.json", "test", data)
    assert back[0].objects == splits.test[0].objects
    assert back[0].labels.path == splits.test[0].labels.path
    again = look_around(data, seed=4, cache=tmp_path / "cache")[0]
    assert again.shared != survey.shared


@pytest.mark.parametrize("form", ["cityscapes", "camvid"])
def test_formats_without_objects_are_refused(form: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not tell objects"):
        find_data(section("house", format=form, root=str(tmp_path)), seed=0, cache=tmp_path)


def test_masks_of_objects_are_no_classes_of_pixels(tmp_path: Path) -> None:
    data = section("house", "road", format="masks", root=str(tmp_path), labels="").model_copy(
        update={"objects": False}
    )
    with pytest.raises(JobError, match="does not tell classes of pixels"):
        find_data(data, seed=0, cache=tmp_path)


def test_blocks_of_objects_need_a_gap(tmp_path: Path) -> None:
    draw_scene(tmp_path)
    keys = {"images": (str(tmp_path / "scene.tif"),), "labels": "{stem}.geojson", "attribute": "kind"}
    data = section("house", "side-road", split={"by": "blocks", "block_px": 32}, **keys)
    survey = find_data(data, seed=0, cache=tmp_path / "cache")
    with pytest.raises(JobError, match=r"data\.split\.gap_px"):
        make_splits(survey, data, seed=0, halo_px=0)
