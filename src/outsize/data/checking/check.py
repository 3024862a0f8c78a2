"""Reads all data once to find what is wrong before a training begins, and counts what the training needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from outsize.data.catalogue import OpenScene, Survey, look_around, nothing_left, refuse_too_many
from outsize.data.checking.objects import ObjectCounts, count_objects
from outsize.data.checking.problems import Problem, find_problems
from outsize.data.checking.tally import BLOCK_PX, SceneTally, are_plain, is_small, tally_pictures, tally_scene
from outsize.data.feeding import prefetch
from outsize.data.formats import pair_of
from outsize.data.scenes import LabelledScene, label_table, stack_files
from outsize.data.split import BadFile, Splits
from outsize.data.statistics import BandStatistics, from_sums, num_windows
from outsize.errors import DataError
from outsize.files.trees import read_json_tree
from outsize.job import DataSection
from outsize.progress import Bar, Reporter
from outsize.raster.reading import Picture, has_picture_name
from outsize.runs import write_text
from outsize.tiles.window import Window

_MAX_NAMED = 20  # images that are named; split.json has all of them


@dataclass(frozen=True)
class Checked:
    """Data of which every pixel was read once, and what was counted."""

    splits: Splits  # without what was set aside
    statistics: BandStatistics | None  # of the bands, over valid training pixels; None where there are none
    class_px: dict[str, NDArray[np.int64]]  # of each split: labelled pixels of each class
    blocks: dict[Path, NDArray[np.int64]]  # of each image: labelled pixels (row and column of blocks, class)
    problems: tuple[Problem, ...]
    objects: ObjectCounts | None = None  # where the labels are objects


def open_and_count(
    data: DataSection, *, seed: int, cache: Path, num_threads: int
) -> tuple[Survey, dict[Path, SceneTally]]:
    """Open every image and count the small ones at once, while others are opened.

    Blocks are shared out only when all scenes are known: then nothing is counted yet.
    """
    table = label_table([each.value for each in data.classes], data.ignore_value)

    def look(
        path: Path, mask: Path | None, split: str, open_scene: OpenScene
    ) -> tuple[LabelledScene, SceneTally | None]:
        num_classes = len(data.classes)
        is_plain = data.format != "scenes" and data.shrink == 1 and not data.objects
        if is_plain and mask is not None and all(map(has_picture_name, (path, mask))):
            # a file that does not open is opened again below, where it is looked at for the reason
            with suppress(DataError), Picture(path) as image, Picture(mask) as labels:
                scene = pair_of(image, labels)
                if is_small(scene) and are_plain(scene):
                    return scene, tally_pictures(scene, image, labels, split, table, num_classes)
        scene = open_scene(path)
        return scene, tally_scene(scene, {split: ()}, table, num_classes) if is_small(scene) else None

    is_whole = not (data.images and data.split.by == "blocks")
    survey, visits = look_around(
        data, seed=seed, cache=cache, num_threads=num_threads, look=look if is_whole else None
    )
    return survey, {path: tally for path, tally in visits.items() if tally is not None}


def check_data(
    data: DataSection,
    splits: Splits,
    *,
    num_threads: int,
    bar: Callable[[int], Bar] | None = None,
    known: Mapping[Path, SceneTally] = MappingProxyType({}),
) -> Checked:
    """Read every block once and count; what is wrong is listed, not raised.

    `bar` makes the progress bar for a number of images and windows; what is `known` is not read again.
    """
    table = label_table([each.value for each in data.classes], data.ignore_value)
    areas = _areas(splits)
    every = list({scene.image.path: scene for _, held in splits.items() for scene in held}.values())
    scenes = [scene for scene in every if scene.image.path not in known]
    total = sum(1 if is_small(scene) else num_windows([scene.image]) for scene in scenes)
    shown = bar(total) if bar is not None else None

    def advance() -> None:
        if shown is not None:
            shown.advance()

    def small(index: int) -> SceneTally:
        scene = few[index]
        return tally_scene(scene, areas[scene.image.path], table, len(data.classes))

    few = [scene for scene in scenes if is_small(scene)]
    tallies = dict(known)
    for index, tally in enumerate(
        prefetch(small, range(len(few)), num_threads=num_threads, num_ahead=8 * num_threads)
    ):
        tallies[few[index].image.path] = tally
        advance()
    for scene in scenes:
        if not is_small(scene):
            path = scene.image.path
            tallies[path] = tally_scene(
                scene, areas[path], table, len(data.classes), num_threads=num_threads, advance=advance
            )
    return _gather(data, splits, {scene.image.path: tallies[scene.image.path] for scene in every})


def load_or_check(
    path: Path, data: DataSection, splits: Splits, *, num_threads: int, reporter: Reporter
) -> Checked:
    """Return what data.json at `path` says of these very files, or read them all and write it.

    Refuses data with which training cannot begin.
    """
    checked = recall_checked(path, data, splits)
    if checked is None:
        with ExitStack() as stack:
            checked = check_data(
                data,
                splits,
                num_threads=num_threads,
                bar=lambda total: stack.enter_context(reporter.bar("check", total, "part")),
            )
        refuse_problems(checked)
        save(path, data, splits, checked)
    refuse_problems(checked)
    return checked


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
    ):  # not there, or of another make: counted anew
        return None


def _gather(data: DataSection, splits: Splits, tallies: Mapping[Path, SceneTally]) -> Checked:
    names = [each.name for each in data.classes]
    bad = [BadFile(path, tally.corrupt) for path, tally in tallies.items() if tally.corrupt]
    problems = [Problem("contents", str(path), tally.fault) for path, tally in tallies.items() if tally.fault]
    try:
        refuse_too_many([*splits.set_aside, *bad], len(tallies) + len(splits.set_aside), data.max_bad_share)
    except DataError as error:
        problems.insert(0, Problem("corrupt", str(bad[0].path) if bad else "", str(error)))
    kept = splits.without(bad)
    good = {path: tally for path, tally in tallies.items() if not tally.corrupt}
    class_px = {split: np.zeros(len(names), np.int64) for split, _ in splits.items()}
    for tally in good.values():
        for split, counts in tally.split_px.items():
            class_px[split] += counts
    for split, scenes in kept.items():
        # where more are corrupt than may be, that a split has none left is no news
        too_many = any(each.kind == "corrupt" for each in problems)
        if getattr(splits, split) and not scenes and not too_many:
            gone = [scene.image.path for scene in getattr(splits, split)]
            problems.append(Problem("nothing left", str(gone[0]), nothing_left(split, gone, data)))
    if kept.train:
        bands = data.bands or kept.train[0].image.band_names
        if not problems:  # what follows from a broken file is no news
            problems += find_problems(kept, bands, names, class_px)
            if (
                data.is_dataset and not data.pictures
            ):  # its classes are given: one that a part of it lacks is no mistake
                problems = [
                    replace(each, fatal=each.fatal and each.kind != "empty class") for each in problems
                ]
    problems += [Problem("incomplete", "", note, fatal=False) for note in splits.notes]
    blocks = {path: tally.blocks for path, tally in good.items()}
    objects = count_objects(kept, len(names)) if data.objects else None
    if objects is not None and objects.most == 1:
        text = "no image has more than one object: labels seem to be classes of pixels, and do not tell objects apart"
        problems.append(Problem("one object", objects.most_in, text, fatal=False))
    return Checked(kept, _statistics(good.values()), class_px, blocks, tuple(problems), objects)


def _statistics(tallies: Iterable[SceneTally]) -> BandStatistics | None:
    trained = [tally for tally in tallies if tally.num_train]
    if not trained or len({len(tally.sums) for tally in trained}) > 1:
        return None
    count = sum(tally.num_train for tally in trained)
    sums = np.sum([tally.sums for tally in trained], axis=0)
    return from_sums(count, sums, np.sum([tally.squares for tally in trained], axis=0))


def _areas(splits: Splits) -> dict[Path, dict[str, tuple[Window, ...]]]:
    areas: dict[Path, dict[str, tuple[Window, ...]]] = {}
    for split, scenes in splits.items():
        for scene in scenes:
            areas.setdefault(scene.image.path, {})[split] = scene.areas
    return areas


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


def say_set_aside(checked: Checked, reporter: Reporter) -> None:
    """Name the corrupt images that are left out; split.json has all of them."""
    bad = checked.splits.set_aside
    for each in bad[:_MAX_NAMED]:
        reporter.say("set aside", f"set aside: {each.reason}", file=str(each.path))
    if len(bad) > _MAX_NAMED:
        reporter.say("set aside", f"set aside: {len(bad) - _MAX_NAMED} more")
