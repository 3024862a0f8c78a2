"""Whole pictures: each once in an epoch, in an order that depends on the seed alone, with its class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.formats.classed.digit_files import draw_classes, draw_idx, section

from outsize.data.catalogue import open_data
from outsize.data.formats.classed import read_idx
from outsize.data.pictures import ShuffledPictures, labelled_pictures
from outsize.data.pictures.pictures import brought_to
from outsize.data.scenes import label_table
from outsize.data.split import Splits
from outsize.data.statistics import BandStatistics
from outsize.data.targets import OneClass
from outsize.errors import JobError

TABLE = label_table(range(10), 255)


@pytest.fixture
def splits(tmp_path: Path) -> Splits:
    draw_idx(tmp_path)
    return open_data(
        section("idx", tmp_path, split={"val": 0.25}), seed=0, halo_px=0, cache=tmp_path / "cache"
    )


def shuffled(splits: Splits, **keys: object) -> ShuffledPictures:
    statistics = BandStatistics((0.0,), (1.0,))
    known = {"tile_px": 12, "augmentations": (), "statistics": statistics, "seed": 3, **keys}
    return ShuffledPictures(splits.train, TABLE, **known)  # type: ignore[arg-type]


def test_pictures_are_read_as_they_are(splits: Splits, tmp_path: Path) -> None:
    held = labelled_pictures(splits.val, TABLE, 12)
    own = read_idx(tmp_path / "train-images-idx3-ubyte.gz", 3)[30:]
    assert len(held) == 10
    assert held.class_ids.tolist() == list(range(10))
    assert held.name(0).endswith(".png#30")
    for index in range(10):
        read = held.read(index)
        assert np.array_equal(read.image[0], own[index])
        assert read.target == OneClass(index)
        assert read.valid.all()


def test_an_epoch_has_each_picture_once_in_its_own_order(splits: Splits) -> None:
    drawn = shuffled(splits)
    assert drawn.samples_per_cover == 30
    epochs = [[drawn.sample(epoch, index).image.tobytes() for index in range(30)] for epoch in (0, 1, 0)]
    assert len(set(epochs[0])) == 30
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert epochs[0] == epochs[2]
    again = [drawn.sample(0, index).image.tobytes() for index in range(30, 60)]
    assert sorted(again) == sorted(epochs[0])
    assert again != epochs[0]


def test_changes_keep_the_class(splits: Splits) -> None:
    drawn = shuffled(splits, augmentations=("flip", "noise"), tile_px=(16, 20))
    sample = drawn.sample(0, 5)
    assert (sample.image.shape, sample.image.dtype, sample.valid.shape) == ((1, 16, 20), np.float32, (16, 20))
    plain = shuffled(splits).sample(0, 5)
    assert sample.target == plain.target
    assert np.array_equal(sample.image, drawn.sample(0, 5).image)
    assert drawn.sample_bytes == 16 * 20 * 5
    with pytest.raises(JobError, match=r"train.augment is not for whole pictures: found scale"):
        shuffled(splits, augmentations=("scale",))


def test_pictures_of_any_size_are_brought_to_one(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data")
    data = section("classes", tmp_path / "data", ("cat", "dog"), split={"val": 0.0, "test": 0.0})
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    held = labelled_pictures(splits.train, TABLE, 8)
    held.share_memory(2, 2**20)
    means = [held.read(index).image.mean() for index in range(len(held))]
    assert [mean > 75 for mean in means] == [class_id == 1 for class_id in held.class_ids]
    assert held.name(0) == str(splits.train[0].image.path)
    held.close()


def test_every_pixel_of_a_large_picture_counts() -> None:
    image = np.zeros((1, 64, 64), np.float32)
    image[0, ::2, ::2] = 4
    assert brought_to(image, (4, 4)).mean() == pytest.approx(1, abs=0.05)
