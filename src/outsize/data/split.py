"""Shares images out to training, validation and test, and refuses a split that leaks."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outsize.data.areas import block_shape, kept_areas
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, JobError, explain
from outsize.job import SplitSection
from outsize.runs import write_json
from outsize.tiles.window import Window

SPLITS = ("train", "val", "test")
_PROBE_BYTES = 4096


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Splits:
    """The scenes of each split, and the files that were set aside."""

    train: tuple[LabelledScene, ...]
    val: tuple[LabelledScene, ...]
    test: tuple[LabelledScene, ...]
    set_aside: tuple[BadFile, ...] = ()
    notes: tuple[str, ...] = ()  # what else there is to say of what was found

    def items(self) -> Iterable[tuple[str, tuple[LabelledScene, ...]]]:
        """Return (name, scenes) of each split."""
        return (("train", self.train), ("val", self.val), ("test", self.test))

    def without(self, bad: Sequence[BadFile]) -> Splits:
        """Return the splits without some images, which are then set aside."""
        paths = {each.path for each in bad}
        kept = {
            name: tuple(scene for scene in scenes if scene.image.path not in paths)
            for name, scenes in self.items()
        }
        return Splits(**kept, set_aside=(*self.set_aside, *bad), notes=self.notes)


def share_out(paths: Sequence[Path], section: SplitSection, seed: int) -> dict[str, tuple[Path, ...]]:
    """Share images out by scene or by folder; who goes where depends on seed and names, not on their order.

    In the order of names, the last ones are held back for the test and those before them for validation.
    What stays together by folder are the folders directly below the one that all images have in common.
    """
    root = Path(os.path.commonpath([path.parent for path in paths]))
    inner = {path: path.relative_to(root) for path in paths}
    chosen: dict[Path, str] = {}
    if section.by == "folder":
        for split, names in (("val", section.val_folders), ("test", section.test_folders)):
            for name in names:
                chosen |= dict.fromkeys(_in_folder(name, inner, root), split)
    units: dict[str, list[Path]] = {}
    for path, place in inner.items():
        if path not in chosen:
            units.setdefault(place.parts[0] if section.by == "folder" else str(place), []).append(path)
    if section.order == "named":
        free = sorted(units, reverse=True)
    else:
        free = sorted(units, key=lambda unit: _rank(seed, unit))
    for split, share in (("test", section.test), ("val", section.val)):
        num = 0 if split in chosen.values() else _wanted(share, len(units))
        chosen |= {path: split for unit in free[:num] for path in units[unit]}
        free = free[num:]
    if not free:
        what = "folders" if section.by == "folder" else "images"
        raise JobError(
            explain(
                "the split leaves nothing to train on",
                f"{len(units)} {what} to share out",
                "at least one for each of train, val and test",
                'split large scenes with data.split.by = "blocks", or set data.split.test or val to 0',
            )
        )
    return {split: tuple(p for p in paths if chosen.get(p, "train") == split) for split in SPLITS}


def share_blocks(
    scenes: Sequence[LabelledScene], section: SplitSection, *, seed: int, gap_px: int
) -> dict[str, tuple[LabelledScene, ...]]:
    """Share the blocks of all scenes out, at least `gap_px` apart; a scene may be in several splits."""
    shapes = [block_shape(each.image.height, each.image.width, section.block_px) for each in scenes]
    num = sum(rows * cols for rows, cols in shapes)
    wanted = {"test": _wanted(section.test, num), "val": _wanted(section.val, num)}
    order = np.random.default_rng(seed).permutation(num)
    numbers = np.zeros(num, np.int8)
    numbers[order[: wanted["test"]]] = SPLITS.index("test")
    numbers[order[wanted["test"] : sum(wanted.values())]] = SPLITS.index("val")
    shared: dict[str, list[LabelledScene]] = {split: [] for split in SPLITS}
    first = 0
    for scene, shape in zip(scenes, shapes, strict=True):
        assigned = numbers[first : first + shape[0] * shape[1]].reshape(shape)
        first += assigned.size
        found = kept_areas(scene.image.height, scene.image.width, section.block_px, assigned, gap_px)
        for number, areas in found.items():
            if areas:
                shared[SPLITS[number]].append(replace(scene, areas=areas))
    for split in ("train", *(name for name, number in wanted.items() if number)):
        if not shared[split]:
            raise JobError(
                explain(
                    f"the split leaves nothing to {'train on' if split == 'train' else split}",
                    f"{num} blocks of {section.block_px} px, {gap_px} px apart",
                    "areas larger than the gap between them",
                    "set data.split.block_px larger, or data.split.gap_px smaller",
                )
            )
    return {split: tuple(held) for split, held in shared.items()}


def check_split(splits: Splits, gap_px: int) -> None:
    """Refuse a split in which what is tested was trained on: a file in two splits, areas too near, equal contents."""
    for (one, ones), (other, others) in itertools.combinations(splits.items(), 2):
        known = {_file_of(scene.image.path): scene for scene in ones}
        for scene in others:
            twin = known.get(_file_of(scene.image.path))
            if twin is not None:
                _refuse_near(twin, scene, (one, other), gap_px)
    places = {scene.image.path: split for split, scenes in splits.items() for scene in scenes}
    for group in find_duplicates(places):
        found = sorted({places[path] for path in group})
        if len(found) > 1:
            remedy = "remove the copies"
            raise DataError(
                explain(
                    f"{group[0]} leaks", f"its copy {group[1]}", f"no copy across {', '.join(found)}", remedy
                )
            )


def _file_of(path: Path) -> object:
    """Return what is the same for all names of one file."""
    try:
        about = os.stat(path)  # noqa: PTH116 (one of each of many thousand pictures: a third of the time)
    except OSError:  # an address
        return path
    return about.st_dev, about.st_ino


def write_split(path: Path, splits: Splits) -> None:
    """Write which images, and which areas of them, belong to which split."""
    tree = {
        split: [
            {
                "image": str(scene.image.path),
                "labels": str(scene.labels.path),
                "areas": [[area.row, area.col, area.height, area.width] for area in scene.areas],
                **({} if scene.objects is None else {"objects": str(scene.objects)}),
                **({} if scene.boxes is None else {"boxes": str(scene.boxes)}),
                **({} if scene.picture_px is None else {"picture_px": scene.picture_px}),
                **({"is_numbers": True} if scene.is_numbers else {}),
            }
            for scene in scenes
        ]
        for split, scenes in splits.items()
    }
    aside = [{"file": str(bad.path), "reason": bad.reason} for bad in splits.set_aside]
    write_json(path, {**tree, "set_aside": aside})


def find_duplicates(paths: Iterable[Path]) -> list[list[Path]]:
    """Return groups of files with the same bytes; only files of one size with the same middle and end are read."""
    groups = [list(paths)]
    for mark in (_size_of, _probe_of, _hash_of):
        groups = [again for group in groups for again in _grouped(group, mark)]
    return groups


def _grouped(paths: list[Path], mark: object) -> list[list[Path]]:
    assert callable(mark)
    found: dict[object, list[Path]] = {}
    for path in paths:
        found.setdefault(mark(path), []).append(path)
    return [group for value, group in found.items() if len(group) > 1 and value is not None]


def _size_of(path: Path) -> int | None:
    about = path.stat()
    return about.st_size if stat.S_ISREG(about.st_mode) else None  # a stack may be named by its folder


def _probe_of(path: Path) -> bytes:
    """Read a little of the middle and of the end: the beginning is often the same for all files of one program."""
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 2)
        middle = file.read(_PROBE_BYTES)
        file.seek(max(0, size - _PROBE_BYTES))
        return middle + file.read(_PROBE_BYTES)


def _hash_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _refuse_near(one: LabelledScene, other: LabelledScene, names: tuple[str, str], gap_px: int) -> None:
    path, between = one.image.path, f"{names[0]} and {names[1]}"
    if not one.areas or not other.areas:
        need, remedy = "each image in one split", "take it out of one of them"
        raise DataError(explain(f"{path} leaks", f"it is in {between}", need, remedy))
    for first, second in itertools.product(one.areas, other.areas):
        distance_px = _distance_px(first, second)
        if distance_px < gap_px:
            need, remedy = f"at least {gap_px} px", "set data.split.gap_px to the model's halo"
            raise DataError(
                explain(f"{path} leaks", f"areas of {between} {distance_px} px apart", need, remedy)
            )


def _distance_px(one: Window, other: Window) -> int:
    """Return how many rows or columns, whichever are more, lie between two areas; below 0 they overlap."""
    rows = max(one.row, other.row) - min(one.row_end, other.row_end)
    cols = max(one.col, other.col) - min(one.col_end, other.col_end)
    return max(rows, cols)


def _wanted(share: float, num: int) -> int:
    return max(1, round(share * num)) if share > 0 else 0


def _rank(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def _in_folder(name: str, inner: Mapping[Path, Path], root: Path) -> list[Path]:
    """Return the images in a folder given by its name or by its path below the images' common folder."""
    wanted = f"/{name.strip('/')}/"
    found = [path for path, place in inner.items() if wanted in f"/{place.parent.as_posix()}/"]
    if not found:
        known = sorted({part for place in inner.values() for part in place.parent.parts})
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        need = f"one of {', '.join(known[:8])}" if known else f"folders inside {root}"
        remedy = f"did you mean {near[0]!r}?" if near else "widen data.images"
        raise JobError(explain("data.split names a folder without images", repr(name), need, remedy))
    return found
