"""Finds what is wrong with data as a whole, from what was counted: mixed bands, empty classes, copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.scenes import LabelledScene
from outsize.data.split import Splits, find_duplicates
from outsize.errors import explain, listed
from outsize.raster.reading import has_picture_name
from outsize.units import format_pixels

# what differs between texts of one cause: the file, and the place in it
_PATH = re.compile(r"\S*/\S*[^\s:,;]")
_PLACE = re.compile(r" at row \d+, column \d+")


@dataclass(frozen=True)
class Problem:
    """Something wrong, in one line; `fatal` where it stands in the way of training."""

    kind: str
    file: str
    text: str
    fatal: bool = True


def merged(problems: Sequence[Problem]) -> list[Problem]:
    """Return one problem for each cause: the first of it, with the names of other files that have it."""
    groups: dict[object, list[Problem]] = {}
    for problem in problems:
        cause = _PATH.sub("", _PLACE.sub("", problem.text))
        groups.setdefault((problem.kind, problem.fatal, cause), []).append(problem)
    return [
        replace(first, text=f"{first.text} (the same in {len(others)} more: {listed(_names(others))})")
        if others
        else first
        for first, *others in groups.values()
    ]


def _names(problems: Sequence[Problem]) -> list[str]:
    """Name the files that problems are about: best those that their texts name, as the mask of an image."""
    paths = [_PATH.search(problem.text.partition(": found ")[0]) for problem in problems]
    return [
        Path(problem.file if path is None else path[0]).name
        for problem, path in zip(problems, paths, strict=True)
    ]


def find_problems(
    splits: Splits,
    bands: Sequence[str],
    class_names: Sequence[str],
    class_px: Mapping[str, NDArray[np.int64]],
) -> list[Problem]:
    """Return what is wrong with the data as a whole; what comes first is worst."""
    scenes = [scene for _, held in splits.items() for scene in held]
    problems = _mixed(scenes, bands)
    is_whole = splits.train[0].picture_px is not None
    thing = "picture" if is_whole else "pixel"
    for name, number in zip(class_names, class_px["train"].tolist(), strict=True):
        if number == 0:
            problems.append(empty_class(name, "picture" if is_whole else "labelled pixel"))
    for split in ("val", "test"):
        absent = [name for name, num in zip(class_names, class_px[split].tolist(), strict=True) if num == 0]
        if getattr(splits, split) and absent:
            text = f"{split} has no {thing} of {', '.join(absent)}: its scores will not speak of them"
            problems.append(Problem("unscored class", "", text, fatal=False))
    problems += _mixed_sizes(scenes)
    for group in find_duplicates({scene.image.path: None for scene in scenes}):
        text = f"{len(group)} images are the same: {', '.join(path.name for path in group[:4])}"
        problems.append(Problem("duplicate", str(group[0]), text, fatal=False))
    return problems


def empty_class(name: str, thing: str = "labelled pixel") -> Problem:
    """Return the problem of a class that nothing can be learnt about."""
    need, remedy = f"{thing}s of each class", "label some, or take the class out of data.classes"
    text = explain(f"class {name!r} is empty", f"no {thing} of it in train", need, remedy)
    return Problem("empty class", "", text)


def _mixed_sizes(scenes: Sequence[LabelledScene]) -> list[Problem]:
    """Tell of pictures with one class each that differ in size; scenes may, for windows of one size are cut of them."""
    sizes = Counter(scene.picture_px for scene in scenes if scene.picture_px is not None)
    if len(sizes) < 2:
        return []
    (usual, _), *_ = sizes.most_common(1)
    other = next(scene for scene in scenes if scene.picture_px not in (None, usual))
    least, most = min(sizes, key=_num_px), max(sizes, key=_num_px)
    text = (
        f"pictures have {len(sizes)} sizes, from {format_pixels(*least)} to {format_pixels(*most)}, "
        f"most of them {format_pixels(*usual)}: each is brought to train.tile_px"
    )
    return [Problem("mixed sizes", str(other.image.path), text, fatal=False)]


def _num_px(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _mixed(scenes: Sequence[LabelledScene], bands: Sequence[str]) -> list[Problem]:
    """Compare the bands of each image with those that most images have."""
    images = list({scene.image.path: scene.image for scene in scenes}.values())
    ((usual, _),) = Counter((each.num_bands, each.dtype) for each in images).most_common(1)
    wanted = next(each for each in images if (each.num_bands, each.dtype) == usual)
    problems = []
    for image in images:
        found = None
        if image.num_bands != wanted.num_bands:
            found = "bands", f"{image.num_bands} bands", f"{wanted.num_bands}"
        elif image.dtype != wanted.dtype:
            found = "dtype", image.dtype, wanted.dtype
        elif bands and all(bands) and all(image.band_names) and sorted(image.band_names) != sorted(bands):
            found = "band names", ", ".join(image.band_names), ", ".join(bands)
        if found is not None:
            kind, here, there = found
            tool = "" if has_picture_name(image.path) else " (gdal_translate)"
            remedy = f"bring all images to the same bands and type{tool}"
            text = explain(f"{image.path} differs from {wanted.path.name}", here, there, remedy)
            problems.append(Problem(f"mixed {kind}", str(image.path), text))
    return problems
