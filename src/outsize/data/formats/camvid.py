"""The format `camvid`: video frames of streets, as the original with 32 colours or as releases of 11 class numbers.

701_StillsRaw_full/0001TP_006690.png, LabeledApproved_full/0001TP_006690_L.png    all, shared out by data.split
train/, train_labels/, val/, val_labels/, ...                                     colours
train/images/, train/labels/, val/images/, ...                                    class numbers
train/, trainannot/, val/, valannot/, ...                                         class numbers
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.formats.folders import pair
from outsize.data.formats.layout import Layout, pictures_in, share_pictures
from outsize.data.made import made_labels, stamp
from outsize.data.scenes import LabelledScene
from outsize.data.split import SPLITS
from outsize.errors import DataError, explain, listed
from outsize.job import DataSection
from outsize.known.tables import table
from outsize.raster.reading import Picture, describe

WHOLE = (("701_StillsRaw_full", "LabeledApproved_full"), ("images", "labels"))
SPLIT = (("{}/images", "{}/labels"), ("{}", "{}annot"), ("{}", "{}_labels"))
_CODE = np.array([1 << 16, 1 << 8, 1], np.int32)  # makes one number of red, green, blue


def find_camvid(data: DataSection, seed: int) -> Layout:
    """Find the frames with their labels, and say what a half downloaded dataset lacks."""
    root = Path(data.root)
    folders = find_folders(root)
    if not folders or (len(folders) == 1 and "train" in folders):
        return Layout(faults=(_no_folders(root, folders),))
    labels: dict[Path, Path] = {}
    frames: dict[str, tuple[Path, ...]] = dict.fromkeys(SPLITS, ())
    faults = []
    for split, (pictures, masks) in folders.items():
        here, there = pictures_in(pictures), _by_frame(masks)
        frames[split] = tuple(here.values())
        labels |= {path: there[name] for name, path in here.items() if name in there}
        for what, ours, theirs, place in (
            ("labels", here, there, masks),
            ("pictures", there, here, pictures),
        ):
            missing = [name for name in ours if name not in theirs]
            if missing or not ours:
                found = (
                    f"none of {listed(missing)} in {place}"
                    if missing
                    else f"nothing to label in {masks.parent}"
                )
                need, remedy = (
                    f"{what} of all {len(ours)} frames",
                    "download them again, or remove the others",
                )
                text = f"CamVid in {root} is not complete: {what} are missing"
                faults.append(DataError(explain(text, found, need, remedy)))
    if "" in frames:
        frames = share_pictures(frames[""], data, seed) if not faults else {"train": frames[""]}

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        return _open(path, labels[path], cache)

    return Layout(frames, open_scene, labels.get, tuple(faults))


def find_folders(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of frames and of labels by split; by "" where one holds them all."""
    for pictures, masks in SPLIT:
        found = {split: (root / pictures.format(split), root / masks.format(split)) for split in SPLITS}
        found = {split: both for split, both in found.items() if all(folder.is_dir() for folder in both)}
        if "train" in found:
            return found
    for pictures, masks in WHOLE:
        if (root / pictures).is_dir() and (root / masks).is_dir():
            return {"": (root / pictures, root / masks)}
    return {}


def classes_of_colours(path: Path, colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn a picture of colours (row, column, red-green-blue) into class numbers."""
    codes, values = _colour_table()
    found = colours.astype(np.int32) @ _CODE
    places = np.searchsorted(codes, found).clip(max=codes.size - 1)
    wrong = codes[places] != found
    if wrong.any():
        row, col = (int(each) for each in np.argwhere(wrong)[0])
        what = f"colour {', '.join(map(str, colours[row, col].tolist()))} at row {row}, column {col}"
        need, remedy = "one of the 32 colours of CamVid", "take the labels as distributed, never as JPEG"
        raise DataError(explain(f"label colour without a class in {path}", what, need, remedy))
    classes: NDArray[np.uint8] = values[places]
    return classes


def _colour_table() -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the numbers of all colours, sorted, and the class of each."""
    known = table("camvid")
    pairs = [(colour, known["ignore_value"]) for colour in known["void"].values()]
    pairs += [(colour, each["value"]) for each in known["classes"] for colour in each["members"].values()]
    codes = np.array([colour for colour, _ in pairs], np.int32) @ _CODE
    order = np.argsort(codes)
    return codes[order], np.array([value for _, value in pairs], np.uint8)[order]


def _open(path: Path, labels: Path, cache: Path) -> LabelledScene:
    image, mask = describe(path), describe(labels)
    if mask.num_bands == 1:
        return pair(image, mask)

    def make() -> NDArray[np.uint8]:
        with Picture(labels) as opened:
            return classes_of_colours(labels, np.moveaxis(opened.decode()[:3], 0, -1))

    return pair(image, made_labels(path, cache, f"camvid {stamp(labels)}", make))


def _by_frame(masks: Path) -> dict[str, Path]:
    """Return label files by the name of their frame, which some releases end with _L."""
    return {name.removesuffix("_L"): path for name, path in pictures_in(masks, ".png").items()}


def _no_folders(root: Path, found: dict[str, tuple[Path, Path]]) -> DataError:
    known = [f"{pictures} with {masks}" for pictures, masks in WHOLE]
    known += [f"{pictures.format('train')} with {masks.format('train')}" for pictures, masks in SPLIT]
    here = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    what = listed(here, 8) or ("no folder" if root.is_dir() else "no such folder")
    what = f"{what}: nothing for val" if found else what
    need, remedy = (
        f"one of: {'; '.join(known)}, and the same for val",
        "unpack all of it, or correct data.root",
    )
    return DataError(explain(f"CamVid in {root} is not complete", what, need, remedy))
