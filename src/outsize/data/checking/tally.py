"""Reads one labelled scene once and counts all that is asked of it: classes by block, band sums, valid pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.feeding import prefetch
from outsize.data.frames import known
from outsize.data.sample import IGNORE
from outsize.data.scenes import LabelledScene, classes_of
from outsize.data.statistics import windows_of
from outsize.errors import DataError, explain
from outsize.raster.reading import Picture, SceneReader
from outsize.tiles.window import Window

BLOCK_PX = 256
_SMALL_PX = 4 * 1024**2  # scenes up to this size are read by one thread each
_MAX_COMPARED = 12  # classes up to which comparing with each is quicker than a histogram

Counts = NDArray[np.int64]


@dataclass
class SceneTally:
    """What was counted in a scene; or what is wrong with it: `corrupt` for a file, `fault` for its contents."""

    blocks: Counts  # row of blocks, column of blocks, class: labelled pixels
    split_px: dict[
        str, Counts
    ]  # labelled pixels of each class inside the areas of a split; or pictures of it
    num_valid: int = 0
    num_train: int = 0  # valid pixels in the areas of training, over which bands are summed
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    corrupt: str = ""
    fault: str = ""


def is_small(scene: LabelledScene) -> bool:
    """Say whether a scene is read by one thread, beside others."""
    return scene.image.num_px <= _SMALL_PX


def tally_scene(
    scene: LabelledScene,
    areas: Mapping[str, tuple[Window, ...]],
    table: NDArray[np.uint8],
    num_classes: int,
    *,
    num_threads: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> SceneTally:
    """Count a scene; `areas` are those of each split it is in (none: all of it)."""
    tally = _empty(scene, areas, num_classes)
    try:
        if are_plain(scene) and not any(areas.values()):
            with Picture(scene.image.path) as image, Picture(scene.labels.path) as labels:
                _count_pictures(tally, scene, image, labels, table)
        else:
            _count_windows(tally, scene, areas, table, num_threads, advance)
        _refuse_empty(tally, scene)
    except DataError as error:
        tally.corrupt = str(error)
    if scene.picture_px is not None:  # all pixels of a picture are of its class
        height, width = scene.picture_px
        tally.split_px = {split: counts // (height * width) for split, counts in tally.split_px.items()}
    return tally


def tally_pictures(
    scene: LabelledScene,
    image: Picture,
    labels: Picture,
    split: str,
    table: NDArray[np.uint8],
    num_classes: int,
) -> SceneTally:
    """Count a plain picture and its mask, both open."""
    tally = _empty(scene, {split: ()}, num_classes)
    try:
        _count_pictures(tally, scene, image, labels, table)
    except DataError as error:
        tally.corrupt = str(error)
    return tally


def are_plain(scene: LabelledScene) -> bool:
    """Say whether image and labels are pictures of bytes, read as they are, in which every pixel is valid."""
    return all(
        not info.band_indexes and info.always_valid and info.dtype == "uint8" and info.shrink == 1
        for info in (scene.image, scene.labels)
    )


def _empty(scene: LabelledScene, splits: Iterable[str], num_classes: int) -> SceneTally:
    image = scene.image
    shape = (-(-image.height // BLOCK_PX), -(-image.width // BLOCK_PX), num_classes)
    return SceneTally(
        np.zeros(shape, np.int64),
        {split: np.zeros(num_classes, np.int64) for split in splits},
        sums=np.zeros(image.num_bands),
        squares=np.zeros(image.num_bands),
    )


def _refuse_empty(tally: SceneTally, scene: LabelledScene) -> None:
    if tally.num_valid == 0 and not tally.fault:
        need, remedy = "some image", "leave the scene out, or correct its nodata value"
        tally.fault = explain(f"{scene.image.path} has no valid pixel", "nodata everywhere", need, remedy)


def _count_pictures(
    tally: SceneTally, scene: LabelledScene, image: Picture, labels: Picture, table: NDArray[np.uint8]
) -> None:
    """Count values where Pillow decoded them; band by band only what is trained on."""
    tally.num_valid = scene.image.num_px
    if "train" in tally.split_px:
        histogram, levels = image.count_values(), np.arange(256.0)
        tally.num_train = tally.num_valid
        tally.sums, tally.squares = histogram @ levels, histogram @ levels**2
    else:
        image.load()
    values = labels.decode()[0]
    if not _count_blocks(tally.blocks, values, table):
        try:
            classes_of(scene.labels, values, np.ones(values.shape, np.bool_), table, scene.labels.window)
        except DataError as error:
            tally.fault = str(error)
    for split in tally.split_px:
        tally.split_px[split] = tally.blocks.sum(axis=(0, 1))


def _count_windows(
    tally: SceneTally,
    scene: LabelledScene,
    areas: Mapping[str, tuple[Window, ...]],
    table: NDArray[np.uint8],
    num_threads: int,
    advance: Callable[[], None],
) -> None:
    windows = windows_of(scene.image)
    with SceneReader(scene.image) as images, SceneReader(scene.labels) as labels:

        def count(index: int) -> SceneTally:
            window = windows[index]
            raster = images.read(window)
            part = SceneTally(np.zeros(_shape(window, tally), np.int64), _zeros(tally))
            found = labels.read(window)
            if scene.is_numbers:
                _count_numbers(part, raster.pixels, found.pixels)
                return part
            try:
                classes = classes_of(scene.labels, found.pixels[0], found.valid, table, window)
            except DataError as error:  # the labels could be read, but hold what is no class
                part.fault = str(error)
                return part
            classes[~raster.valid] = IGNORE
            part.num_valid = int(np.count_nonzero(raster.valid))
            _count_blocks(part.blocks, classes, _SAME)
            part.sums, part.squares = np.zeros(len(raster.pixels)), np.zeros(len(raster.pixels))
            for split, inside in _inside(areas, window):
                rows, cols = inside.within(window).slices
                num = tally.blocks.shape[2]
                part.split_px[split] += np.bincount(classes[rows, cols].ravel(), minlength=256)[:num]
                if split == "train":
                    # float64: sums of squares of 16-bit values over a scene pass 2**53 in nothing smaller
                    values = raster.pixels[:, rows, cols][:, raster.valid[rows, cols]].astype(np.float64)
                    part.num_train += values.shape[1]
                    part.sums += values.sum(axis=1)
                    part.squares += (values**2).sum(axis=1)
            return part

        indices = range(len(windows))
        parts: Iterable[SceneTally] = map(count, indices)
        if num_threads > 1:
            parts = prefetch(count, indices, num_threads=num_threads, num_ahead=2 * num_threads)
        for window, part in zip(windows, parts, strict=True):
            advance()
            if part.fault:
                tally.fault = part.fault
                break
            _add(tally, part, window)


def _count_numbers(part: SceneTally, pixels: NDArray[Any], numbers: NDArray[Any]) -> None:
    """Count what is known of each lead, and sum up the bands where all of them are."""
    is_known = known(numbers)
    for row, col in np.ndindex(part.blocks.shape[:2]):
        inside = is_known[:, row * BLOCK_PX : (row + 1) * BLOCK_PX, col * BLOCK_PX : (col + 1) * BLOCK_PX]
        part.blocks[row, col] = np.count_nonzero(inside, axis=(1, 2))
    part.num_valid = int(np.count_nonzero(known(pixels).any(0)))
    part.sums, part.squares = np.zeros(len(pixels)), np.zeros(len(pixels))
    for split in part.split_px:
        part.split_px[split] += part.blocks.sum(axis=(0, 1))
        if split == "train":
            values = pixels.astype(np.float64).reshape(len(pixels), -1)
            part.num_train = values.shape[1]
            part.sums, part.squares = values.sum(axis=1), (values**2).sum(axis=1)


_SAME = np.arange(256, dtype=np.uint8)


def _count_blocks(blocks: Counts, values: NDArray[np.uint8], table: NDArray[np.uint8]) -> bool:
    """Count the classes in each block, and say whether every value was one of a class or to be ignored."""
    wanted = np.argsort(table, kind="stable")[: blocks.shape[2]].tolist()  # the value of each class
    wanted += np.flatnonzero(table == IGNORE).tolist()
    num_known = 0
    for row, col in np.ndindex(blocks.shape[:2]):
        part = values[row * BLOCK_PX : (row + 1) * BLOCK_PX, col * BLOCK_PX : (col + 1) * BLOCK_PX]
        counts = _count(np.ascontiguousarray(part), wanted)
        num_known += sum(counts)
        blocks[row, col] = counts[: blocks.shape[2]]
    return num_known == values.size


def _count(part: NDArray[np.uint8], wanted: list[int]) -> list[int]:
    if len(wanted) > _MAX_COMPARED:
        counts: list[int] = np.bincount(part.ravel(), minlength=256)[wanted].tolist()
        return counts
    counts, num_left = [0] * len(wanted), part.size
    for index, value in enumerate(wanted):
        counts[index] = int(np.count_nonzero(part == value))
        num_left -= counts[index]
        if num_left == 0:  # most blocks hold few classes
            break
    return counts


def _inside(areas: Mapping[str, tuple[Window, ...]], window: Window) -> Iterable[tuple[str, Window]]:
    for split, held in areas.items():
        for area in held or (window,):
            inside = area.intersect(window)
            if inside.num_px:
                yield split, inside


def _shape(window: Window, tally: SceneTally) -> tuple[int, int, int]:
    return -(-window.height // BLOCK_PX), -(-window.width // BLOCK_PX), tally.blocks.shape[2]


def _zeros(tally: SceneTally) -> dict[str, Counts]:
    return {split: np.zeros_like(counts) for split, counts in tally.split_px.items()}


def _add(tally: SceneTally, part: SceneTally, window: Window) -> None:
    row, col = window.row // BLOCK_PX, window.col // BLOCK_PX
    rows, cols = part.blocks.shape[:2]
    tally.blocks[row : row + rows, col : col + cols] += part.blocks
    for split, counts in part.split_px.items():
        tally.split_px[split] += counts
    tally.num_valid += part.num_valid
    tally.num_train += part.num_train
    tally.sums += part.sums
    tally.squares += part.squares
