"""Boxes are cut at the border of their picture, and given the classes of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.formats.boxed.box_pictures import boxed

from outsize.data.boxes import NEUTRAL, gather
from outsize.data.formats.boxed.fitting import in_classes, in_picture
from outsize.errors import DataError, JobError

SOURCE = Path("a.txt")


def test_a_little_beyond_the_border_is_cut() -> None:
    boxes = in_picture(gather([[-2, -1, 61, 30]], ["Car"], scores=[0.5]), (40, 60), SOURCE)
    assert (boxes.sides.tolist(), boxes.scores.tolist()) == ([[0, 0, 60, 30]], [0.5])
    assert len(in_picture(gather([[60.5, 0, 61, 30]], ["Car"]), (40, 60), SOURCE)) == 0


@pytest.mark.parametrize("sides", [(-9, 0, 20, 20), (0, 0, 70, 20), (0, 0, 20, 50), (80, 80, 90, 90)])
def test_far_beyond_it_is_refused(sides: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match=r"a.txt, box 1: it is not in its picture"):
        in_picture(gather([sides], ["Car"]), (40, 60), SOURCE)


def test_labels_are_told_apart_without_regard_to_case() -> None:
    data = boxed("voc", Path(), "car", "bus", joined={"lorry": "bus"}, neutral=["van"], left_out=["cat"])
    names = ["Car", "BUS", "Lorry", "Van", "cat", "DontCare"]
    held = in_classes(gather([[0, 0, 1, 1]] * 6, names), data, SOURCE)
    assert held.class_ids.tolist() == [0, 1, 1, NEUTRAL, NEUTRAL]
    assert held.boxes.labels.tolist() == ["Car", "BUS", "Lorry", "Van", "DontCare"]


def test_an_unknown_label_is_told_with_the_nearest() -> None:
    with pytest.raises(JobError, match=r"found 'cars'.*nearest: 'Car'"):
        in_classes(gather([[0, 0, 1, 1]], ["cars"]), boxed("voc", Path(), "Car"), SOURCE)
    with pytest.raises(JobError, match=r"data.joined.van names no class"):
        in_classes(
            gather([[0, 0, 1, 1]], ["van"]), boxed("voc", Path(), "car", joined={"van": "cor"}), SOURCE
        )
