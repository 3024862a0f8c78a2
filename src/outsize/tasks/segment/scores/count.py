"""Compares class maps with label rasters, and with each other, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.feeding import prefetch
from outsize.data.sample import IGNORE
from outsize.data.scenes import LabelledScene, read_labels
from outsize.errors import DataError, explain
from outsize.metrics.boundary import OutlineCounts, Tolerances, count_outlines, no_outlines
from outsize.metrics.calibration import Reliability, no_pixels, reliability
from outsize.metrics.confusion import Counts, confusion
from outsize.progress import Bar
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.tasks.segment.scores.files import MapFiles
from outsize.tasks.segment.scores.places import ScoredPlace, count_places, score_place
from outsize.tasks.subjects import counted_pixels
from outsize.tiles.window import Window

_SIDE_PX = 2048  # a multiple of the side of a place


@dataclass(frozen=True)
class Comparison:
    """What was counted over the pixels that are labelled, valid, predicted and inside."""

    counts: Counts  # (true class, predicted class)
    reliability: Reliability | None  # None where there is no raster of confidence
    places: tuple[ScoredPlace, ...]
    outlines: OutlineCounts | None  # None where no tolerances were given


def compare_map(
    files: MapFiles,
    scene: LabelledScene,
    table: NDArray[np.uint8],
    num_classes: int,
    *,
    map_table: NDArray[np.uint8] | None = None,
    inside: AreaOfInterest | None = None,
    tolerances: Tolerances | None = None,
    bar: Bar | None = None,
) -> Comparison:
    """Count a map against its labels, in the scene's areas and the area of interest.

    `map_table` turns values of the map into classes where they differ from those of the labels. `tolerances` are those
    of outlines, for a boundary F.
    """
    info = describe_map(files.classes, scene.labels)
    confidence = describe_map(files.confidence, scene.labels) if files.confidence else None
    windows = list(_windows(info.height, info.width))
    total = Comparison(
        np.zeros((num_classes, num_classes), np.int64),
        no_pixels() if confidence else None,
        (),
        no_outlines(num_classes, tolerances) if tolerances else None,
    )
    with ExitStack() as opened:
        maps, labels = (opened.enter_context(SceneReader(each)) for each in (info, scene.labels))
        sure = opened.enter_context(SceneReader(confidence)) if confidence else None

        def count(index: int) -> Comparison | None:
            window = windows[index]
            counted = counted_pixels(window, scene.areas, inside)
            if counted is not None and not counted.any():
                return None
            margin_px = tolerances.margin_px if tolerances else 0
            read = _widened(window, margin_px, info.window)
            truth = read_labels(labels, read, table)
            predicted = _read_classes(maps, read, table if map_table is None else map_table)
            core = window.within(read)
            outlines = (
                _count_outlines(truth, predicted, num_classes, tolerances, core, counted)
                if tolerances
                else None
            )
            truth, predicted = truth[core.slices], predicted[core.slices]
            if counted is not None:
                truth = np.where(counted, truth, np.uint8(IGNORE))
            trust = _count_trust(sure, window, truth, predicted, num_classes) if sure else None
            counts, places = _count_classes(truth, predicted, num_classes, window, info.window)
            return Comparison(counts, trust, places, outlines)

        for found in prefetch(count, range(len(windows)), num_threads=2, num_ahead=4):
            total = total if found is None else _add(total, found)
            if bar is not None:
                bar.advance()
    return total


def _add(one: Comparison, other: Comparison) -> Comparison:
    trusts, outlines = (one.reliability, other.reliability), (one.outlines, other.outlines)
    return Comparison(
        one.counts + other.counts,
        None if trusts[0] is None or trusts[1] is None else trusts[0] + trusts[1],
        one.places + other.places,
        None if outlines[0] is None or outlines[1] is None else outlines[0] + outlines[1],
    )


def _count_classes(
    truth: NDArray[np.uint8], predicted: NDArray[np.uint8], num_classes: int, window: Window, whole: Window
) -> tuple[Counts, tuple[ScoredPlace, ...]]:
    total = np.zeros((num_classes, num_classes), np.int64)
    places = []
    for place, counts in count_places(truth, predicted, num_classes, window):
        total += counts
        scored = score_place(0, (whole.height, whole.width), place, counts)
        places += [scored] if scored else []
    return total, tuple(places)


def _count_trust(
    sure: SceneReader,
    window: Window,
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    num_classes: int,
) -> Reliability:
    raster = sure.read(window)
    known = raster.valid & (truth < num_classes) & (predicted < num_classes)
    return reliability(np.where(known, raster.pixels[0], np.uint8(IGNORE)), truth == predicted)


def _count_outlines(
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    num_classes: int,
    tolerances: Tolerances,
    core: Window,
    counted: NDArray[np.bool_] | None,
) -> OutlineCounts:
    # what lies beside the part that counts is still known: an outline there may be near, its end is none
    return count_outlines(
        torch.from_numpy(truth),
        torch.from_numpy(predicted),
        num_classes,
        tolerances,
        core=core,
        counted=None if counted is None else torch.from_numpy(counted),
    )


def compare_maps(
    paths: tuple[Path, Path],
    tables: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    scene: LabelledScene,
    num_classes: int,
    *,
    inside: AreaOfInterest | None = None,
    bar: Bar | None = None,
) -> Counts:
    """Count (class in one map, class in the other) over the pixels that both predict, labelled or not."""
    first, second = (describe_map(path, scene.image) for path in paths)
    windows = list(_windows(first.height, first.width))
    total = np.zeros((num_classes, num_classes), np.int64)
    with SceneReader(first) as one, SceneReader(second) as other:

        def count(index: int) -> Counts:
            here, there = (
                _read_classes(reader, windows[index], table)
                for reader, table in zip((one, other), tables, strict=True)
            )
            counted = counted_pixels(windows[index], scene.areas, inside)
            if counted is not None:
                here = np.where(counted, here, np.uint8(IGNORE))
            return confusion(here, there, num_classes)

        for counts in prefetch(count, range(len(windows)), num_threads=2, num_ahead=4):
            total += counts
            if bar is not None:
                bar.advance()
    return total


def num_windows(height: int, width: int) -> int:
    """Count the windows that a comparison reads, for a progress bar."""
    return sum(1 for _ in _windows(height, width))


def describe_map(path: Path, like: SceneInfo) -> SceneInfo:
    """Describe a map or a confidence that must lie on the grid of `like`."""
    info = describe(path)
    if (info.height, info.width) != (like.height, like.width):
        raise DataError(
            explain(
                f"map {path} does not fit {like.path}",
                f"{info.height} x {info.width} px",
                f"{like.height} x {like.width} px",
                "predict that scene again",
            )
        )
    if info.dtype != "uint8" or info.num_bands != 1:
        found, need = f"{info.num_bands} bands of {info.dtype}", "one band of uint8"
        raise DataError(explain(f"{path} is no class map", found, need, "predict that scene again"))
    return info


def _read_classes(reader: SceneReader, window: Window, table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    raster = reader.read(window)
    # values outside the classes cannot come from a model of this run: left out like nodata
    classes: NDArray[np.uint8] = np.where(raster.valid, table[raster.pixels[0]], np.uint8(IGNORE))
    return classes


def _windows(height: int, width: int) -> Iterator[Window]:
    for row in range(0, height, _SIDE_PX):
        for col in range(0, width, _SIDE_PX):
            yield Window(row, col, min(_SIDE_PX, height - row), min(_SIDE_PX, width - col))


def _widened(window: Window, margin_px: int, whole: Window) -> Window:
    wide = Window(
        window.row - margin_px,
        window.col - margin_px,
        window.height + 2 * margin_px,
        window.width + 2 * margin_px,
    )
    return wide.intersect(whole)
