"""Recognises a dataset that is distributed with a layout of its own, by names and not by pixels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from outsize.data.formats.camvid import find_folders
from outsize.data.formats.coco import MOST_TEXT_BYTES, CocoFile, read_coco
from outsize.data.formats.layout import pictures_in
from outsize.data.formats.masks import find_masked
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


def recognise(folder: Path, *, objects: bool = False) -> Dataset | None:
    """Return the dataset that lies in a folder, None where it is none of those that are known.

    Outlines of a COCO file can be learnt as classes of pixels, or as `objects`.
    """
    if objects:
        return _masks(folder) or _coco(folder, objects=True)
    return _cityscapes(folder) or _camvid(folder) or _coco(folder) or _masks(folder)


def _masks(folder: Path) -> Dataset | None:
    """Look for folders that hold a picture of their name with masks of objects."""
    pictures, _, faults = find_masked(folder)
    names = tuple(sorted({name for picture in pictures for name, _ in picture.masks}))
    if not names or faults:
        return None
    return Dataset("masks", len(pictures), names, is_split=False, objects=True)


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
