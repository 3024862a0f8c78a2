"""The format `classes`: a folder for each class, which is named as that, with its pictures in it.

ROOT/cat/a.jpg  ROOT/dog/b.png                         shared out by data.split
ROOT/train/cat/a.jpg  ROOT/val/...  ROOT/test/...      by folder
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np

from outsize.data.formats.layout import Layout, share_pictures
from outsize.data.made import made_labels
from outsize.data.scenes import LabelledScene, open_image
from outsize.data.split import SPLITS
from outsize.errors import DataError, JobError, OutsizeError, explain, listed
from outsize.job import DataSection

_ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff")

ByClass = dict[str, list[Path]]


def find_class_folders(data: DataSection, seed: int) -> Layout:
    """Find the pictures of each class; refuse a folder of a class that the job does not list."""
    root = Path(data.root)
    folders = class_folders(root)
    values = {each.attribute or each.name: each.value for each in data.classes}
    found = {name: None for held in folders.values() for name in held}
    for name in found:
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1, cutoff=0.0)
            need = f"one of data.classes: {listed(list(values), 6)}"
            remedy = f"list it, or take the folder out; nearest: {near[0]!r}"
            text = f"a folder of {root} is of a class that the job does not list"
            return Layout(faults=(JobError(explain(text, repr(name), need, remedy)),))
    classes = {path: name for held in folders.values() for name, paths in held.items() for path in paths}
    if not classes:
        need = f"pictures ({', '.join(_ENDINGS)}) in a folder for each class"
        what = listed(sorted(found), 6) or "no folder"
        text, remedy = f"no picture in the folders of {root}", "correct data.root"
        return Layout(faults=(DataError(explain(text, what, need, remedy)),))
    try:
        shared = {
            split: tuple(path for paths in held.values() for path in paths) for split, held in folders.items()
        }
        shared = (
            share_pictures(shared[""], data, seed) if "" in shared else dict.fromkeys(SPLITS, ()) | shared
        )
    except OutsizeError as error:
        return Layout(faults=(error,))

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        return with_class(path, values[classes[path]], data, cache)

    return Layout(shared, open_scene)


def class_folders(root: Path) -> dict[str, ByClass]:
    """Return the pictures of each class by split, or by "" where folders do not tell it."""
    if (root / "train").is_dir() and any(path.is_dir() for path in (root / "train").iterdir()):
        return {split: _by_class(root / split) for split in SPLITS if (root / split).is_dir()}
    return {"": _by_class(root)} if root.is_dir() else {}


def with_class(path: Path, value: int, data: DataSection, cache: Path) -> LabelledScene:
    """Describe a picture with the value of its class; all pictures of a class and a size share their labels."""
    image = open_image(path, data)
    size = (image.height, image.width)
    name = Path(f"class-{value}-{size[0]}x{size[1]}")
    labels = made_labels(cache / name, cache, f"class {value} {size}", lambda: np.full(size, value, np.uint8))
    return LabelledScene(image, labels, picture_px=size)


def _by_class(folder: Path) -> ByClass:
    return {
        inner.name: [
            path
            for path in sorted(inner.rglob("*"))
            if path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and path.is_file()
        ]
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
    }
