"""Tables of published datasets, and the keys of a job that follow from them."""

from __future__ import annotations

from collections import Counter

import pytest

from outsize.errors import JobError
from outsize.job import check_job
from outsize.known.tables import class_map, filled_in, table


def test_cityscapes_has_the_train_ids_in_order() -> None:
    data = check_job({"data": {"format": "cityscapes"}}, "job").data
    assert [each.value for each in data.classes] == [
        *(7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
    ]
    assert (data.classes[0].name, data.classes[0].colour) == ("road", (128, 64, 128))
    assert (data.classes[18].name, data.classes[18].colour) == ("bicycle", (119, 11, 32))
    assert sorted(data.ignore_value) == [0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30, 34, 255]
    assert (sum(table("cityscapes")["cities"]["train"].values()), data.labels) == (2975, "gtFine")


def test_own_classes_leave_the_other_label_ids_out() -> None:
    classes = [{"name": "road", "value": 7}, {"name": "car", "value": 26}]
    data = check_job({"data": {"format": "cityscapes", "classes": classes}}, "job").data
    assert {7, 26}.isdisjoint(data.ignore_value)
    assert len(data.ignore_value) == 34


def test_camvid_joins_32_colours_to_11_classes() -> None:
    known = table("camvid")
    colours = [tuple(c) for each in known["classes"] for c in each["members"].values()]
    assert (len(known["classes"]), len(set(colours)), len(colours)) == (11, 31, 31)
    data = check_job({"data": {"format": "camvid"}}, "job").data
    assert [each.value for each in data.classes] == list(range(11))
    assert data.ignore_value == (11, 255)


@pytest.mark.parametrize(("name", "num"), [("taco-1", 1), ("taco-2", 2), ("taco-3", 3), ("taco-4", 4)])
def test_maps_of_few_classes(name: str, num: int) -> None:
    assert len({*class_map(name).values()} - {"Background"}) == num


def test_maps_give_the_published_numbers_of_categories() -> None:
    names = {each.lower() for each in table("taco")["categories"]}
    ten = Counter(target for name, target in class_map("taco-10").items() if name in names)
    assert (len(names), ten["Plastic bag + wrapper"], ten["Cup"], ten["Other"], len(ten)) == (
        60,
        7,
        5,
        34,
        10,
    )
    seventeen = Counter(target for name, target in class_map("taco-17").items() if name in names)
    assert (seventeen["Carton"], seventeen["Paper"], seventeen["Other"], len(seventeen)) == (7, 6, 16, 17)
    assert class_map("taco-17")["cigarette"] == "Other"
    assert len(set(class_map("taco-60").values())) == 60
    assert class_map("taco-10")["plastic drink bottle"] == "Bottle"


def test_classes_of_a_map_stand_behind_the_background() -> None:
    data = check_job({"data": {"format": "coco", "class_map": "taco-10"}}, "job").data
    names = [each.name for each in data.classes]
    assert (names[0], names[1:], data.outside) == ("background", sorted(names[1:]), "background")
    assert len({each.colour for each in data.classes}) == len(names) == 11


def test_an_unknown_map_is_told_with_the_nearest() -> None:
    with pytest.raises(
        JobError, match=r"job: unknown class map: found 'taco-16'.*did you mean 'taco-1[07]?'"
    ):
        check_job({"data": {"format": "coco", "class_map": "taco-16"}}, "job")


def test_other_formats_stay_as_they_are() -> None:
    assert filled_in({"format": "folders", "labels": "x"}) == {"format": "folders", "labels": "x"}
    assert filled_in("nonsense") == "nonsense"
    with pytest.raises(JobError, match=r"'data.classes' is missing"):
        check_job({"data": {"format": "coco"}}, "job")
