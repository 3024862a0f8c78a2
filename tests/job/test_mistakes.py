"""Whatever stands in a job in place of a value, what is said of it is in words of our own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from outsize.errors import JobError
from outsize.job.data import ClassSpec
from outsize.job.load import check_job, check_limits
from outsize.job.mistakes import in_short
from outsize.job.whole import Job

_GOOD = {"data": {"classes": [{"name": "a", "value": 0}, {"name": "b", "value": 1}]}}
_ODD = (math.nan, -math.inf, -1, 10**12, 1.5, "so", [], ["so"], [[1]], {"so": 1}, {"so": {"so": "so"}}, True)


def _sections(section: type[BaseModel], place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Go over all keys, those of sections in sections too."""
    for name, field in section.model_fields.items():
        yield (*place, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _sections(field.annotation, (*place, name))


_KEYS = [
    *_sections(Job, ()),
    ("train", "phases", "lr"),
    ("train", "phases", "epochs"),
    ("data", "classes", "value"),
]


def _with(place: tuple[str, ...], value: object) -> dict[str, Any]:
    tree: Any = {
        "train": {"phases": [{"name": "a"}]},
        "data": {"classes": [dict(each) for each in _GOOD["data"]["classes"]]},
    }
    section = tree
    for name in place[:-1]:
        section = section.setdefault(name, {})
        section = section[0] if isinstance(section, list) else section
    section[place[-1]] = value
    return dict(tree)


@pytest.mark.parametrize("place", _KEYS, ids=".".join)
def test_no_foreign_words_reach_a_person(place: tuple[str, ...]) -> None:
    for value in _ODD:
        try:
            check_job(_with(place, value), "job.toml")
        except JobError as error:
            text = str(error)
            assert "job.toml" in text
            assert ": found " in text
            assert ", needed " in text
            assert "; " in text
            assert "nput should be" not in text
            assert "\n" not in text
            assert "{" not in text.partition(", needed ")[2].replace("{stem}", "").replace("{name}", "")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (
            ("train", "max_minutes"),
            math.nan,
            "'train.max_minutes' in job.toml: found nan, needed a number, neither infinite nor nan",
        ),
        (("train", "lr"), -1, "found -1, needed more than 0"),
        (("train", "rare_share"), 2, "found 2, needed at most 1"),
        (("train", "batch"), "two", "found 'two', needed a whole number"),
        (("train", "optimizer"), "adam", "needed 'sgd' or 'adamw'; did you mean 'adamw'?"),
        (("train", "augment"), "flip", "found 'flip', needed a list"),
        (
            ("limits", "gpu_memory"),
            "lots",
            "'limits.gpu_memory' in job.toml: found 'lots', needed a number of bytes, or e.g. \"16GiB\"",
        ),
        (("data", "ignore_value"), [0, -1], "found [0, -1], needed a whole number from 0 to 255, or a list"),
        (("data", "ignore_value"), 1.5, "found 1.5, needed a whole number from 0 to 255, or a list of such"),
        (("data", "ignore_value"), [], "found [], needed a whole number from 0 to 255, or a list of such"),
        (("data", "ignore_value"), True, "'data.ignore_value' in job.toml: found True"),
        (("seed",), True, "'seed' in job.toml: found True, needed a whole number"),
        (("train", "lr"), True, "found True, needed a number"),
        (("limits", "tile_px"), False, "found False, needed a whole number"),
        (("train", "max_minutes"), True, "found True, needed a number"),
        (("limits",), 3, "found 3, needed a section of keys and values"),
        (("data", "classes"), [], "needed at least 1 of them"),
    ],
)
def test_the_need_is_named(place: tuple[str, ...], value: object, words: str) -> None:
    with pytest.raises(JobError) as caught:
        check_job(_with(place, value), "job.toml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("spelt", "words"),
    [
        ({"name": "a", "valu": 0}, "unknown key 'data.classes.0.valu'.* did you mean 'value'"),
        ({"nme": "a", "value": 0}, "unknown key 'data.classes.0.nme'.* did you mean 'name'"),
        ({"name": "a", "stripes": 0}, "key 'data.classes.0.value' is missing"),
    ],
)
def test_a_key_that_is_missing_because_it_was_misspelt(spelt: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        check_job({"data": {"classes": [spelt, {"name": "b", "valu": 1}]}}, "job.toml")


def test_truth_is_still_told_where_it_is_asked_for() -> None:
    job = check_job({**_GOOD, "train": {"fuse": False}, "limits": {"allow_approximate": True}}, "job.toml")
    assert (job.train.fuse, job.limits.allow_approximate) == (False, True)


def test_limits_without_a_job_are_named_as_those_of_one() -> None:
    with pytest.raises(
        JobError, match=r"unknown key 'limits.halo' in outsize.predict: .* did you mean 'halo_px'\?"
    ):
        check_limits({"halo": 3}, "outsize.predict")
    with pytest.raises(
        JobError, match=r"bad value for 'limits.tile_px' in outsize.predict: found 1, needed at least 8"
    ):
        check_limits({"tile_px": 1}, "outsize.predict")
    with pytest.raises(
        JobError, match=r"bad value for 'limits.gpu_memory' in outsize.predict: found '16 apples', needed"
    ):
        check_limits({"gpu_memory": "16 apples"}, "outsize.predict")


def test_a_mistake_in_short() -> None:
    with pytest.raises(ValidationError) as caught:
        ClassSpec(name="a", value=999)
    assert in_short(caught.value) == "value = 999 instead of at most 253"
    with pytest.raises(ValidationError) as caught:
        ClassSpec.model_validate({"value": 1})
    assert in_short(caught.value) == "name missing"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            {"name": "road", "value": 0},
            "found value 0 twice, of the classes with name 'a' and 'road', needed a value of its own for each class",
        ),
        ({"name": "a", "value": 7}, "found name 'a' twice, of the classes with value 0 and 7"),
    ],
)
def test_classes_that_are_there_twice_are_named(second: dict[str, Any], words: str) -> None:
    classes = [{"name": "a", "value": 0, "colour": "#000000"}, second]
    with pytest.raises(JobError) as caught:
        check_job({"data": {"classes": classes}}, "job.toml")
    assert words in str(caught.value)
