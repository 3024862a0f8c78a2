"""True boxes beside found ones: names, areas, both measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.formats.boxed.box_pictures import boxed, file, picture

from outsize.data.boxes import IGNORED, NEUTRAL, SceneBoxes, gather
from outsize.data.catalogue import find_data
from outsize.data.scenes import LabelledScene
from outsize.data.statistics import BandStatistics
from outsize.errors import DataError
from outsize.job import ClassSpec, DataSection, TrainSection
from outsize.progress import Reporter
from outsize.raster.reading import describe
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.detect.truth import are_counted, beside, named_truth, open_samples, score
from outsize.tasks.task import ToLearn
from outsize.tiles.window import Window

_CAR = ClassSpec(name="car", value=1, attribute="Auto")
_DATA = DataSection(boxes=True, format="kitti", classes=(_CAR,), joined={"Van": "car"})


def _truth() -> SceneBoxes:
    sides = [[0, 0, 100.25, 50], [200, 0, 260, 60], [300, 0, 400, 50]]
    return SceneBoxes(gather(sides, ["Auto", "Van", IGNORED]), np.array([0, 0, NEUTRAL]))


def _found(*sides: tuple[float, ...]) -> FoundBoxes:
    return FoundBoxes(np.array(sides), np.zeros(len(sides), np.int64), np.linspace(0.9, 0.5, len(sides)))


def test_classes_have_their_names_and_what_was_joined_keeps_its_own() -> None:
    assert named_truth(_truth(), _DATA).labels.tolist() == ["car", "Van", IGNORED]


def test_the_perfect_answer_has_the_perfect_score_in_both_measures() -> None:
    found = _found((0, 0, 100.25, 50), (200, 0, 260, 60), (310, 5, 390, 45))
    scores = score([_truth()], [found], _DATA)
    assert scores.coco.ap == pytest.approx(1)
    assert scores.kitti is not None
    assert scores.kitti.curves["car", "easy", "height"].ap("ap_41") == 1 / 41
    assert scores.kitti.curves["car", "easy", "height"].num_valid == 1  # the van is neutral
    assert set(scores.as_dict(["car"])) == {"box", "kitti"}


def test_classes_that_kitti_does_not_know_have_cocos_measure_alone() -> None:
    data = DataSection(boxes=True, format="kitti", classes=(ClassSpec(name="dog", value=1),))
    truth = SceneBoxes(gather([[0, 0, 10, 10]], ["dog"]), np.array([0]))
    scores = score([truth], [_found((0, 0, 10, 9))], data)
    assert scores.kitti is None
    assert scores.coco.ap50 == pytest.approx(1)
    assert 0.7 < scores.coco.ap < 1
    nothing = replace(
        _found((0, 0, 1, 1)), sides=np.zeros((0, 4)), class_ids=np.zeros(0, int), scores=np.zeros(0)
    )
    assert score([truth], [nothing], data).coco.ap == 0


@pytest.mark.parametrize("shrink", [1, 2])
def test_what_has_its_middle_outside_is_neither_scored_nor_wrong(shrink: int, tmp_path: Path) -> None:
    found_ones = _found((0, 0, 100, 50), (250, 0, 260, 60))
    picture(tmp_path / "a.png", (100, 400))
    image = describe(tmp_path / "a.png").shrunk(shrink)
    scene = LabelledScene(image, image, areas=(Window(0, 0, 100 // shrink, 150 // shrink),))
    truth, found = beside(_truth(), found_ones, scene)
    assert truth.class_ids.tolist() == [0, NEUTRAL, NEUTRAL]
    assert truth.boxes.labels.tolist() == ["Auto", IGNORED, IGNORED]
    assert found.sides.tolist() == [[0, 0, 100, 50]]
    assert are_counted(np.zeros((2, 4)), (), None).tolist() == [True, True]


def test_pictures_without_a_box_to_learn_are_refused(tmp_path: Path) -> None:
    rows = "DontCare 0.00 0 -1.5 5 6 25 20 1.5 1.6 4 1 1 20 -1.6\n"
    for number in range(2):
        picture(tmp_path / f"image_2/{number}.png")
        file(tmp_path / f"label_2/{number}.txt", rows)
    survey = find_data(
        boxed("kitti", tmp_path, split={"val": 0, "test": 0}), seed=0, cache=tmp_path / "cache"
    )
    statistics = BandStatistics((0.0,) * 3, (1.0,) * 3)
    given = ToLearn(tuple(survey.scenes.values()), np.zeros(256, np.uint8), 1, statistics, TrainSection(), 0)
    with pytest.raises(DataError, match="nothing to train on: found 2 pictures without a box"):
        open_samples(given, Reporter("quiet"))
