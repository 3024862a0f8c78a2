"""What a check found, as data.json keeps it; it holds for as long as files, classes and split are the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.checking.objects import ObjectCounts
from outsize.data.checking.problems import Problem
from outsize.data.checking.tally import BLOCK_PX
from outsize.data.scenes import stack_files
from outsize.data.split import BadFile, Splits
from outsize.data.statistics import BandStatistics
from outsize.errors import DataError
from outsize.files.trees import read_json_tree
from outsize.job import DataSection
from outsize.runs import write_text


@dataclass(frozen=True)
class Checked:
    """Data of which every pixel was read once, and what was counted."""

    splits: Splits  # without what was set aside
    statistics: BandStatistics | None  # of the bands, over valid training pixels; None where there are none
    class_px: dict[str, NDArray[np.int64]]  # of each split: labelled pixels of each class
    blocks: dict[Path, NDArray[np.int64]]  # of each image: labelled pixels (row and column of blocks, class)
    problems: tuple[Problem, ...]
    objects: ObjectCounts | None = None  # where the labels are objects


def recall_checked(path: Path, data: DataSection, splits: Splits) -> Checked | None:
    """Return what data.json at `path` says of these very files; None where it says nothing of them."""
    return _load(path, _key(data, splits), splits)


def refuse_problems(checked: Checked) -> None:
    """Raise the first problem that stands in the way; say how many more there are."""
    fatal = [problem for problem in checked.problems if problem.fatal]
    if fatal:
        more = f" ({len(fatal) - 1} more: run `outsize check`)" if len(fatal) > 1 else ""
        raise DataError(fatal[0].text + more)


def save(path: Path, data: DataSection, splits: Splits, checked: Checked) -> None:
    """Write data.json: statistics, classes by split, problems, and one line for each image with its blocks."""
    places: dict[Path, list[str]] = {}
    for split, held in splits.items():
        for scene in held:
            places.setdefault(scene.image.path, []).append(split)
    head = {
        "key": _key(data, splits),
        "block_px": BLOCK_PX,
        "classes": [each.name for each in data.classes],
        "statistics": None
        if checked.statistics is None
        else {"mean": checked.statistics.mean, "std": checked.statistics.std},
        "class_px": {split: counts.tolist() for split, counts in checked.class_px.items()},
        **({} if checked.objects is None else {"objects": checked.objects.as_dict()}),
        "problems": [vars(problem) for problem in checked.problems],
        "set_aside": [{"file": str(bad.path), "reason": bad.reason} for bad in checked.splits.set_aside],
    }
    lines = [
        json.dumps({"image": str(image), "splits": places[image], "blocks": counts.tolist()})
        for image, counts in checked.blocks.items()
    ]
    text = json.dumps(head, indent=1)[:-2] + ',\n "scenes": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    write_text(path, text)


def _load(path: Path, key: str, splits: Splits) -> Checked | None:
    """Return what data.json says, unless files, classes or split are others by now."""
    try:
        tree = read_json_tree(path)
        if tree["key"] != key or tree["statistics"] is None:
            return None
        known = {bad.path for bad in splits.set_aside}
        bad = [BadFile(Path(each["file"]), each["reason"]) for each in tree["set_aside"]]
        return Checked(
            splits.without([each for each in bad if each.path not in known]),
            BandStatistics(tuple(tree["statistics"]["mean"]), tuple(tree["statistics"]["std"])),
            {split: np.array(counts, np.int64) for split, counts in tree["class_px"].items()},
            {Path(each["image"]): np.array(each["blocks"], np.int64) for each in tree["scenes"]},
            tuple(Problem(**each) for each in tree["problems"]),
            ObjectCounts(**tree["objects"]) if "objects" in tree else None,
        )
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ):  # not there, or of another make: counted again
        return None


def _key(data: DataSection, splits: Splits) -> str:
    """Name all that decides what is counted: classes, split, and each file by size and time."""
    about: list[object] = [[each.value for each in data.classes], [each.name for each in data.classes]]
    about += [data.ignore_value, data.bands, data.max_bad_share, data.shrink, BLOCK_PX]
    for split, scenes in splits.items():
        for scene in scenes:
            files = stack_files(scene.image.path, data).values() if data.stack else (scene.image.path,)
            about.append((split, [_stamp(file) for file in (*files, scene.labels.path)], scene.areas))
            about += [] if scene.objects is None else [_stamp(scene.objects)]
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _stamp(file: Path) -> tuple[str, int, int] | None:
    try:
        about = file.stat()
    except OSError:  # an address
        return None
    return str(file), about.st_size, about.st_mtime_ns
