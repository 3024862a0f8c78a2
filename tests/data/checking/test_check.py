"""One pass over all data: what is counted is right, what is wrong is named, what is known is not read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from outsize.data.catalogue import make_splits, open_data
from outsize.data.checking import check as check_module
from outsize.data.checking.check import check_data, load_or_check, open_and_count
from outsize.data.checking.checked import Checked, refuse_problems
from outsize.data.checking.problems import find_problems
from outsize.data.checking.tally import BLOCK_PX, tally_scene
from outsize.data.split import Splits
from outsize.errors import DataError
from outsize.job import DataSection
from outsize.progress import Reporter
from outsize.raster.reading import Picture

WriteRaster = Callable[..., Path]


def section(num_classes: int = 3, **keys: Any) -> DataSection:
    classes = [{"name": f"c{value}", "value": value} for value in range(num_classes)]
    return DataSection.model_validate({"classes": classes, **keys})


def checked(data: DataSection, tmp_path: Path, num_threads: int = 2) -> tuple[Splits, Checked]:
    splits = open_data(data, seed=0, halo_px=4, cache=tmp_path / "labels")
    return splits, check_data(data, splits, num_threads=num_threads)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number in range(12):
        shape = (300, 280) if number % 2 else (60, 80)
        image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        Image.fromarray(image).save(tmp_path / f"images/{number:02}.png")
        mask = rng.choice(np.uint8([0, 1, 2, 255]), shape)
        Image.fromarray(mask).save(tmp_path / f"masks/{number:02}.png")
    return tmp_path


def folders(tmp_path: Path, **keys: Any) -> DataSection:
    names = {"format": "folders", "images": [f"{tmp_path}/images/*.png"], "labels": "../masks/{stem}.png"}
    return section(**{**names, **keys})


def test_pictures_are_counted_right(pictures: Path) -> None:
    splits, found = checked(folders(pictures), pictures)
    assert found.problems == ()
    assert found.statistics is not None
    pixels = np.concatenate([np.asarray(Image.open(each.image.path)).reshape(-1, 3) for each in splits.train])
    assert_allclose(found.statistics.mean, pixels.mean(0), rtol=1e-12)
    assert_allclose(found.statistics.std, pixels.std(0), rtol=1e-9)
    for split, scenes in splits.items():
        masks = [np.asarray(Image.open(scene.labels.path)) for scene in scenes]
        totals = sum(np.bincount(mask.ravel(), minlength=256)[:3] for mask in masks)
        assert found.class_px[split].tolist() == totals.tolist()
    for path, blocks in found.blocks.items():
        mask = np.asarray(Image.open(pictures / "masks" / path.name))
        assert blocks.shape == (-(-mask.shape[0] // BLOCK_PX), -(-mask.shape[1] // BLOCK_PX), 3)
        last = mask[(len(mask) - 1) // 256 * 256 :, (mask.shape[1] - 1) // 256 * 256 :]
        assert blocks[-1, -1].tolist() == [int((last == value).sum()) for value in range(3)]


def test_many_classes_are_counted_as_few_are(pictures: Path) -> None:
    few, many = (checked(folders(pictures, num_classes=num), pictures)[1] for num in (3, 40))
    assert many.class_px["train"][:3].tolist() == few.class_px["train"].tolist()
    assert many.class_px["train"][3:].sum() == 0


def test_scenes_are_counted_inside_areas_and_where_valid(write_raster: WriteRaster, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(1, 3000, (2, 1200, 1100), dtype=np.uint16)
    pixels[:, 100:300, 50:500] = 0
    labels = rng.choice(np.uint8([0, 1, 2, 255]), (1200, 1100))
    write_raster("a.tif", pixels, nodata=0)
    write_raster("a_labels.tif", labels)
    split = {"by": "blocks", "block_px": 256}
    data = section(images=[f"{tmp_path}/a.tif"], split=split)
    splits, found = checked(data, tmp_path)
    labels[pixels[0] == 0] = 255
    for name, scenes in splits.items():
        inside = np.zeros(labels.shape, np.bool_)
        for area in scenes[0].areas:
            inside[area.slices] = True
        assert found.class_px[name].tolist() == np.bincount(labels[inside], minlength=256)[:3].tolist()
        if name == "train":
            values = pixels[:, inside & (pixels[0] > 0)].astype(np.float64)
            assert found.statistics is not None
            assert_allclose(found.statistics.mean, values.mean(axis=1))
            assert_allclose(found.statistics.std, values.std(axis=1))
    blocks = found.blocks[tmp_path / "a.tif"]
    assert blocks.shape == (5, 5, 3)
    part = labels[1024:1200, 256:512]
    assert blocks[4, 1].tolist() == [int((part == value).sum()) for value in range(3)]
    again = check_data(data, splits, num_threads=1)
    assert again.statistics == found.statistics  # not a matter of threads


def test_a_large_scene_is_read_by_several_threads_with_the_same_result(
    write_raster: WriteRaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    write_raster("a.tif", rng.integers(0, 200, (1, 1100, 2100), dtype=np.uint8))
    write_raster("a_labels.tif", rng.integers(0, 3, (1100, 2100), dtype=np.uint8))
    data = section(train=[f"{tmp_path}/a.tif"])
    splits, small = checked(data, tmp_path)
    monkeypatch.setattr(check_module, "is_small", lambda scene: False)
    large = check_data(data, splits, num_threads=3)
    assert large.statistics == small.statistics
    assert (large.blocks[tmp_path / "a.tif"] == small.blocks[tmp_path / "a.tif"]).all()


def test_values_outside_the_classes_are_named_with_their_place(pictures: Path) -> None:
    mask = np.zeros((60, 80), np.uint8)
    mask[7, 9] = 42
    Image.fromarray(mask).save(pictures / "masks/04.png")
    _, found = checked(folders(pictures), pictures)
    with pytest.raises(
        DataError, match=r"outside the classes in .*04\.png: found 42 at row 7, column 9, needed one of"
    ):
        refuse_problems(found)


def test_truncated_pictures_are_set_aside_up_to_a_share(pictures: Path) -> None:
    path = pictures / "images/05.png"
    path.write_bytes(path.read_bytes()[:5000])
    _, found = checked(folders(pictures), pictures)
    with pytest.raises(DataError, match=r"05\.png cannot be decoded"):
        refuse_problems(found)
    _, found = checked(folders(pictures, max_bad_share=0.1), pictures)
    refuse_problems(found)
    assert [bad.path.name for bad in found.splits.set_aside] == ["05.png"]
    assert all(scene.image.path.name != "05.png" for _, held in found.splits.items() for scene in held)
    assert path not in found.blocks
    for number in ("06", "07"):
        broken = pictures / f"masks/{number}.png"
        broken.write_bytes(broken.read_bytes()[:200])
    _, found = checked(folders(pictures, max_bad_share=0.1), pictures)
    with pytest.raises(DataError, match=r"3 of 12 images cannot be read"):
        refuse_problems(found)


def test_an_empty_class_is_refused(pictures: Path) -> None:
    _, found = checked(folders(pictures, num_classes=4), pictures)
    with pytest.raises(DataError, match="class 'c3' is empty: found no labelled pixel of it in train"):
        refuse_problems(found)


def test_mixed_bands_are_named_and_it_is_the_few_that_differ(pictures: Path) -> None:
    first = checked(folders(pictures), pictures)[0].train[0].image.path
    Image.fromarray(np.zeros((60, 80), np.uint8)).save(first)
    _, found = checked(folders(pictures), pictures)
    assert {problem.kind for problem in found.problems} == {"mixed bands"}
    with pytest.raises(DataError, match=rf"{first.name} differs from .*: found 1 bands, needed 3"):
        refuse_problems(found)


def test_copies_and_classes_nobody_scores_are_noted(pictures: Path) -> None:
    data = folders(pictures, split={"val": 0, "test": 0})
    (pictures / "images/02.png").write_bytes((pictures / "images/04.png").read_bytes())
    splits, found = checked(data, pictures)
    assert [(problem.kind, problem.fatal) for problem in found.problems] == [("duplicate", False)]
    refuse_problems(found)
    split = Splits(splits.train[:9], (), splits.train[9:])
    counts = {"train": np.int64([1, 1]), "val": np.int64([0, 0]), "test": np.int64([1, 0])}
    kinds = [(problem.kind, problem.text[:24]) for problem in find_problems(split, (), ("a", "b"), counts)]
    assert ("unscored class", "test has no pixel of b: ") in kinds


def test_nodata_everywhere_is_refused(write_raster: WriteRaster, tmp_path: Path) -> None:
    write_raster("a.tif", np.zeros((1, 64, 64), np.uint8), nodata=0)
    write_raster("a_labels.tif", np.zeros((64, 64), np.uint8))
    _, found = checked(section(train=[f"{tmp_path}/a.tif"]), tmp_path)
    with pytest.raises(DataError, match=r"a\.tif has no valid pixel"):
        refuse_problems(found)


def test_what_is_known_is_not_read_again(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folders(pictures, max_bad_share=0.2)
    broken = pictures / "images/05.png"
    broken.write_bytes(broken.read_bytes()[:5000])
    splits = open_data(data, seed=0, halo_px=0, cache=pictures)
    path, reads = pictures / "run" / "data.json", []
    original = tally_scene
    monkeypatch.setattr(check_module, "tally_scene", lambda *a, **k: reads.append(1) or original(*a, **k))
    first, second = (load_or_check(path, data, splits, num_threads=1, reporter=Reporter()) for _ in range(2))
    assert len(reads) == 12
    assert second.statistics == first.statistics
    assert second.splits == first.splits
    assert [bad.path for bad in second.splits.set_aside] == [broken]
    assert all((second.blocks[each] == first.blocks[each]).all() for each in first.blocks)
    assert {s: c.tolist() for s, c in second.class_px.items()} == {
        s: c.tolist() for s, c in first.class_px.items()
    }
    Image.fromarray(np.ones((60, 80), np.uint8)).save(pictures / "masks/04.png")  # a file changes
    load_or_check(path, data, splits, num_threads=1, reporter=Reporter())
    assert len(reads) == 24
    path.write_text("{ torn")
    load_or_check(path, data, splits, num_threads=1, reporter=Reporter())
    assert len(reads) == 36
    assert json.loads(path.read_text())["block_px"] == BLOCK_PX


def test_many_pictures_are_counted_by_processes_as_by_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number in range(120):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
            tmp_path / f"images/{number:03}.png"
        )
        Image.fromarray(rng.integers(0, 3, (20, 30), dtype=np.uint8)).save(
            tmp_path / f"masks/{number:03}.png"
        )
    data = folders(tmp_path, max_bad_share=0.1)
    broken = tmp_path / "images/007.png"
    broken.write_bytes(broken.read_bytes()[:-40])
    survey, known = open_and_count(data, seed=0, cache=tmp_path, num_threads=2, reporter=Reporter("quiet"))
    splits = make_splits(survey, data, seed=0, halo_px=0)
    found = check_data(data, splits, num_threads=2, known=known)
    wanted = check_data(data, splits, num_threads=2)
    assert len(known) == 120
    assert found.statistics == wanted.statistics
    assert [bad.path for bad in found.splits.set_aside] == [broken]
    for split, counts in wanted.class_px.items():
        assert found.class_px[split].tolist() == counts.tolist()


def test_a_picture_of_bits_counts_ones(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).random((40, 50)) < 0.3
    Image.fromarray(bits).save(tmp_path / "a.png")
    with Picture(tmp_path / "a.png") as picture:
        counts = picture.count_values()
    assert counts.shape == (1, 256)
    assert (counts[0, 0], counts[0, 1]) == ((~bits).sum(), bits.sum())
