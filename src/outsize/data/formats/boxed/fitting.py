"""Boxes of a file brought to its picture and to the classes of a job; what cannot be meant is refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes import IGNORED, NEUTRAL, Boxes, SceneBoxes
from outsize.data.made import are_made_of, digest, made_labels
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, JobError, explain, listed
from outsize.job import DataSection
from outsize.raster.reading import SceneInfo

_LEFT_OUT = -2
_MOST_BEYOND = 0.02  # of the picture's side: labels are often a little beyond its border

NamedBoxes = Callable[[], Boxes]


def with_boxes(
    image: SceneInfo, data: DataSection, cache: Path, source: Path | str, key: str, make: NamedBoxes
) -> LabelledScene:
    """Describe a picture with its boxes, made once and kept in `cache`; `key` names what they are made of.

    `source` is where a fault is looked for: the picture's own file, or the one of all and the picture's name.

    The raster of classes is for counting and for drawing windows where a rare class is; around boxes it is ignored.
    Where boxes overlap the smaller one is on top.
    """
    about = [(each.name, each.attribute, each.value) for each in data.classes]
    meant = (about, data.joined, data.neutral, data.left_out, data.ignore_value[0])
    key = digest(f"boxes {key} {meant} {image.height} {image.width}")
    target = cache / f"{image.path.stem}-{digest(str(image.path.resolve()), 8)}.npz"
    if not are_made_of(target, key):
        fitted = in_picture(make(), (image.height, image.width), source)
        in_classes(fitted, data, source).save(target, key)
    values = [each.value for each in data.classes]

    def paint() -> NDArray[np.uint8]:
        return painted(SceneBoxes.load(target), (image.height, image.width), values, data.ignore_value[0])

    return LabelledScene(image, made_labels(image.path, cache, key, paint), boxes=target)


def in_picture(boxes: Boxes, size: tuple[int, int], source: Path | str) -> Boxes:
    """Cut boxes at the border of their picture of (height, width); refuse inverted ones and those not in it."""
    height, width = size
    ends = np.array([width, height, width, height], np.float64)
    for number, sides in enumerate(boxes.sides, start=1):
        text = ", ".join(f"{each:g}" for each in sides)
        if sides[2] <= sides[0] or sides[3] <= sides[1]:
            need, remedy = "left < right and top < bottom", "correct it, or take it out"
            raise DataError(explain(f"{source}, box {number}: it has no area", text, need, remedy))
        beyond = np.maximum(-sides, sides - ends)
        if (beyond > _MOST_BEYOND * ends + 2).any():
            need = f"inside its picture of {height} x {width} px"
            remedy = "correct it; or are these the labels of a picture of another size?"
            raise DataError(explain(f"{source}, box {number}: it is not in its picture", text, need, remedy))
    cut = np.clip(boxes.sides, 0, ends)
    is_there = (cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])
    return replace(boxes, sides=cut).take(is_there)


def in_classes(boxes: Boxes, data: DataSection, source: Path | str) -> SceneBoxes:
    """Give each box the number of its class in the job; those of labels that are left out are taken away."""
    numbers = _numbers(data)
    ids = []
    for label in boxes.labels.tolist():
        if label.lower() not in numbers:
            known = {
                each.lower(): each
                for each in (*(spec.attribute or spec.name for spec in data.classes), *data.joined)
            }
            near = [known[each] for each in difflib.get_close_matches(label.lower(), known, n=1, cutoff=0.0)]
            need = f"one of data.classes: {listed([each.name for each in data.classes], 6)}"
            remedy = f"list it there, in data.neutral or in data.left_out; nearest: {near[0]!r}"
            raise JobError(
                explain(
                    f"a box of {source} is of a class that the job does not list", repr(label), need, remedy
                )
            )
        ids.append(numbers[label.lower()])
    class_ids = np.array(ids, np.int64)
    is_kept = class_ids != _LEFT_OUT
    return SceneBoxes(boxes.take(is_kept), class_ids[is_kept])


def painted(
    held: SceneBoxes, size: tuple[int, int], values: list[int], ignore_value: int
) -> NDArray[np.uint8]:
    """Fill each box with the value of its class; what is around boxes, or neutral, is ignored."""
    labels = np.full(size, ignore_value, np.uint8)
    for index in np.argsort(-held.boxes.areas_px, kind="stable").tolist():
        if held.class_ids[index] == NEUTRAL:
            continue
        left, top, right, bottom = held.boxes.sides[index]
        rows = slice(int(top), max(int(top) + 1, int(np.ceil(bottom))))
        cols = slice(int(left), max(int(left) + 1, int(np.ceil(right))))
        labels[rows, cols] = values[held.class_ids[index]]
    return labels


def _numbers(data: DataSection) -> dict[str, int]:
    """Return what each label, in small letters, means: the number of a class, neutral, or left out."""
    names = {each.name: number for number, each in enumerate(data.classes)}
    numbers = dict.fromkeys((each.lower() for each in data.left_out), _LEFT_OUT)
    numbers |= dict.fromkeys((each.lower() for each in (*data.neutral, IGNORED)), NEUTRAL)
    for label, name in data.joined.items():
        if name not in names:
            need, remedy = f"one of {listed(list(names), 6)}", "correct it"
            raise JobError(explain(f"data.joined.{label} names no class", repr(name), need, remedy))
        numbers[label.lower()] = names[name]
    of_value = data.format == "yolo"
    return numbers | {
        (str(each.value) if of_value else each.attribute or each.name).lower(): names[each.name]
        for each in data.classes
    }
