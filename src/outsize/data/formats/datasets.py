"""Recognises a dataset that is distributed with a layout of its own, by names and not by pixels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from outsize.data.formats.camvid import find_folders
from outsize.data.formats.classed import class_folders, idx_pairs
from outsize.data.formats.coco import MOST_TEXT_BYTES, CocoFile, read_coco
from outsize.data.formats.layout import pictures_in
from outsize.data.formats.masks import find_masked
from outsize.data.radar import frames_below
from outsize.errors import DataError
from outsize.files.plain import read_plain
from outsize.files.walk import matching
from outsize.known.tables import BACKGROUND, class_map, table

_DRIVES = re.compile(r"(0001TP|0006R0|0016E5|Seq05VD)_")  # what CamVid's frames are called after
_WORDS = (b'"images"', b'"annotations"', b'"categories"')


@dataclass(frozen=True)
class Dataset:
    """A dataset that was recognised, in the words of a job file."""

    format: str
    num_images: int
    class_names: tuple[str, ...]
    labels: str | None = None
    class_map: str | None = None
    is_split: bool = True  # whether the files say what is for training and what for validation
    objects: bool = False  # whether its labels are learnt as objects one by one
    pictures: bool = False  # whether its labels are a class for each picture
    step_minutes: float | None = None  # between frames, where they are frames that follow one another


def recognise(folder: Path, *, objects: bool = False) -> Dataset | None:
    """Return the dataset that lies in a folder, None where it is none of those that are known.

    Outlines of a COCO file can be learnt as classes of pixels, or as `objects`.
    """
    if objects:
        return _masks(folder) or _coco(folder, objects=True)
    known = _cityscapes(folder) or _camvid(folder) or _coco(folder) or _masks(folder)
    return known or _idx(folder) or _radar(folder) or _classes(folder)


def _masks(folder: Path) -> Dataset | None:
    """Look for folders that hold a picture of their name with masks of objects."""
    pictures, _, faults = find_masked(folder)
    names = tuple(sorted({name for picture in pictures for name, _ in picture.masks}))
    if not names or faults:
        return None
    return Dataset("masks", len(pictures), names, is_split=False, objects=True)


def _radar(folder: Path) -> Dataset | None:
    """Look for frames that follow one another: netCDF or HDF5, or GeoTIFFs with names that differ by a time alone."""
    known = frames_below(folder)
    return None if known is None else Dataset("radar", known[0], (), step_minutes=known[1], is_split=False)


def _idx(folder: Path) -> Dataset | None:
    """Look for files of many pictures, with their classes in others."""
    pairs, faults = idx_pairs(folder)
    if faults or all(each.is_test for each in pairs):
        return None
    num = sum(each.shape[0] for each in pairs)
    return Dataset("idx", num, tuple(map(str, range(10))), pictures=True)


def _classes(folder: Path) -> Dataset | None:
    """Look for a folder for each class; two with the same names in them are pictures and masks."""
    if any(path.is_file() and not path.name.startswith(".") for path in folder.iterdir()):
        return None
    splits = class_folders(folder)
    held: dict[str, list[Path]] = {}
    for by_class in splits.values():
        for name, paths in by_class.items():
            held.setdefault(name, []).extend(paths)
    stems = [
        {path.stem for path in paths} for paths in held.values() if paths
    ]  # `check` tells of empty classes
    if len(stems) < 2 or any(map(_is_word, held)):
        return None
    every = [(name, path) for name, paths in held.items() for path in paths]
    if any(path.parent.name != name or _is_word(path.stem.rpartition("_")[2]) for name, path in every):
        return None  # deeper folders, or masks beside pictures
    if len(stems) == 2 and 2 * len(stems[0] & stems[1]) > len(stems[0]):
        return None
    return Dataset("classes", len(every), tuple(sorted(held)), is_split="" not in splits, pictures=True)


def _is_word(name: str) -> bool:
    """Say whether a folder is named for what its files are, and not for what is on them."""
    return name.lower().rstrip("s") in ("image", "label", "mask", "scene", "picture", "train", "val", "test")


def _cityscapes(folder: Path) -> Dataset | None:
    found = sorted(
        {
            *matching(folder, ("leftImg8bit", "*", "*", "*_leftImg8bit.png"), str(folder)),
            *matching(folder, ("*", "leftImg8bit", "*", "*", "*.png"), str(folder)),
        }
    )
    names = tuple(each["name"] for each in table("cityscapes")["classes"])
    has_fine = any((folder / place).is_dir() for place in ("gtFine", "gtFine_trainvaltest"))
    labels = "gtFine" if has_fine or not (folder / "gtCoarse").is_dir() else "gtCoarse"
    return Dataset("cityscapes", len(found), names, labels) if found else None


def _camvid(folder: Path) -> Dataset | None:
    folders = find_folders(folder)
    frames = [name for pictures, _ in folders.values() for name in pictures_in(pictures)]
    if not frames or not all(map(_DRIVES.match, frames)):
        return None
    names = tuple(each["name"] for each in table("camvid")["classes"])
    return Dataset("camvid", len(frames), names, is_split="train" in folders)


def _coco(folder: Path, *, objects: bool = False) -> Dataset | None:
    """Look for one COCO file, in the folder or in one for annotations; several are for the user to choose from."""
    files = [
        path
        for path in sorted((*folder.glob("*.json"), *folder.glob("annotations/*.json")))
        if _is_coco(path)
    ]
    if len(files) != 1:
        return None
    coco = read_coco(files[0])
    labels = files[0].relative_to(folder).as_posix()
    chosen = "taco-10" if {each.lower() for each in coco.categories} <= set(class_map("taco-60")) else None
    found = _categories(coco) if chosen is None else sorted({*class_map(chosen).values()} - {BACKGROUND})
    names = tuple(found) if objects else (BACKGROUND.lower(), *found)
    return Dataset("coco", len(coco.pictures), names, labels, chosen, is_split=False, objects=objects)


def _categories(coco: CocoFile) -> list[str]:
    used = {each.category for picture in coco.pictures for each in picture.annotations}
    return [name for name in coco.categories if name in used and name.lower() != BACKGROUND.lower()]


def _is_coco(path: Path) -> bool:
    """Say whether a file is one of COCO; others of JSON may be large, and are not parsed."""
    try:
        text = read_plain(path, MOST_TEXT_BYTES)
    except OSError:
        return False
    if not all(word in text for word in _WORDS):
        return False
    try:
        read_coco(path)
    except DataError:
        return False
    return True
