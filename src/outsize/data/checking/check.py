"""Reads all data once to find what is wrong before a training begins, and counts what the training needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from outsize.data.catalogue import OpenScene, Survey, look_around, nothing_left, refuse_too_many
from outsize.data.checking.checked import Checked, recall_checked, refuse_problems, save
from outsize.data.checking.objects import count_objects
from outsize.data.checking.problems import Problem, find_problems
from outsize.data.checking.tally import SceneTally, are_plain, is_small, tally_pictures, tally_scene
from outsize.data.checking.telling import refuse_faults, say_set_aside
from outsize.data.feeding import prefetch
from outsize.data.formats import pair_of
from outsize.data.scenes import LabelledScene, label_table
from outsize.data.split import BadFile, Splits
from outsize.data.statistics import BandStatistics, from_sums, num_windows
from outsize.errors import DataError
from outsize.job import DataSection
from outsize.progress import Bar, Reporter
from outsize.raster.reading import Picture, has_picture_name
from outsize.tiles.window import Window


def open_and_count(
    data: DataSection, *, seed: int, cache: Path, num_threads: int, reporter: Reporter
) -> tuple[Survey, dict[Path, SceneTally]]:
    """Open every image and count the small ones at once, while others are opened; refuse those that cannot be used.

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
    refuse_faults(survey, reporter)
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

    Refuses data with which training cannot begin, and says what is set aside.
    """
    checked = recall_checked(path, data, splits)
    if checked is None:
        with ExitStack() as stack:
            checked = check_data(
                data,
                splits,
                num_threads=num_threads,
                bar=lambda total: stack.enter_context(
                    reporter.bar("check", total, "part", parallel=num_threads)
                ),
            )
        refuse_problems(checked)
        save(path, data, splits, checked)
    refuse_problems(checked)
    say_set_aside(checked, reporter)
    return checked


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
