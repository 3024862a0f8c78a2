"""What a format finds on disk: the images of each split, and how one of them is opened with its labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from outsize.data.scenes import LabelledScene, fixed_folder
from outsize.data.split import share_out
from outsize.errors import DataError, JobError, OutsizeError, explain
from outsize.files.plain import is_address
from outsize.job import DataSection
from outsize.tiles.window import Window

FORMATS_OF: Mapping[str, tuple[str, ...]] = {  # what labels tell
    "classes of pixels": ("scenes", "folders", "cityscapes", "camvid", "coco"),
    "objects": ("scenes", "folders", "coco", "masks"),
    "boxes": ("kitti", "idl", "coco", "voc", "yolo"),
    "a class for each picture": ("classes", "idx"),
    "frames": ("radar",),
}
_LISTS = ("coco", "kitti", "idl", "voc", "yolo")  # those that a file for each split may share out


@dataclass(frozen=True)
class Layout:
    """The images of each split, and how to open them; `faults` are what is missing, and stand in the way."""

    shared: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    open: Callable[[Path, Path], LabelledScene] | None = (
        None  # an image, and the folder for labels that are made
    )
    labels: Callable[[Path], Path | None] = lambda _: None  # the file that labels an image and no other
    faults: tuple[OutsizeError, ...] = ()
    notes: tuple[str, ...] = ()  # what is not there, and does not stand in the way
    areas: Mapping[str, Mapping[Path, tuple[Window, ...]]] = field(
        default_factory=dict
    )  # by split, of shared images
    bands: tuple[str, ...] = ()  # of all images, where the format knows them without opening one


def refuse_keys(data: DataSection) -> None:
    """Refuse keys that the format would pass over without a word, and formats that the labels are not for."""
    wanted = FORMATS_OF[data.kind]
    if data.format not in wanted:
        need, remedy = f"one of {', '.join(wanted)}", "take another format, or another task"
        raise JobError(explain(f"data.format does not tell {data.kind}", repr(data.format), need, remedy))
    unused = ["class_map"] if data.format != "coco" else []
    if data.is_dataset:
        unused += ["images", "stack", "layer", "attribute", "all_polygons"]
        unused += ["train", "val", "test"] if data.format not in _LISTS else []
    if data.kind != "classes of pixels":
        unused += ["outside"]  # what is around objects is none of them, and no class
    if not data.boxes:
        unused += ["joined", "neutral", "left_out"]
    if data.pictures and data.shrink != 1:
        need, remedy = "1, for pictures are brought to train.tile_px anyway", "leave it out"
        raise JobError(explain("data.shrink is not for pictures with one class", data.shrink, need, remedy))
    for key in unused:
        if getattr(data, key):
            found, need = repr(getattr(data, key))[:80], "keys that the format reads"
            raise JobError(explain(f"data.{key} is not for {data.format}", found, need, "leave it out"))


def missing_root(data: DataSection) -> tuple[DataError, ...]:
    """Return the folder that is not there, by the key that names it, before it is said that no image is in it."""
    if data.is_dataset:
        folders = [Path(data.root)]
    else:
        patterns = (*data.images, *data.train, *data.val, *data.test)
        folders = [fixed_folder(pattern) for pattern in patterns if not is_address(pattern)]
    for folder in dict.fromkeys(folders):
        missing = next((each for each in (*reversed(folder.parents), folder) if _is_missing(each)), None)
        if missing is None:
            continue
        is_root = data.is_dataset or missing.name in Path(data.root).parts
        key = (
            "data.root" if is_root else "data.images" if data.images else "data.train, data.val or data.test"
        )
        beside: list[str] = []
        with suppress(OSError):  # a folder that may not be listed helps nobody
            beside = [each.name for each in missing.parent.iterdir() if each.is_dir()]
        near = difflib.get_close_matches(missing.name, beside, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]!r} in {key}?" if near else f"correct {key}"
        need = f"the folder that {key} names"
        return (DataError(explain(f"the folder {missing} is missing", "no such folder", need, remedy)),)
    return ()


def _is_missing(folder: Path) -> bool:
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # it is there, and what is wrong with it is said where it is read
        return False
    return False


def share_pictures(paths: Sequence[Path], data: DataSection, seed: int) -> dict[str, tuple[Path, ...]]:
    """Share out the pictures of a dataset whose files do not say what is for training."""
    if data.split.by == "blocks":
        need, remedy = '"scene" or "folder"', "correct it, or leave it out"
        raise JobError(explain(f"data.split.by is not for {data.format}", "'blocks'", need, remedy))
    return share_out(paths, data.split, seed)


def pictures_in(folder: Path, ending: str = "") -> dict[str, Path]:
    """Return the pictures of a folder whose names end so, by what stands before; in the order of their names."""
    endings = (ending,) if "." in ending else tuple(f"{ending}{each}" for each in (".png", ".jpg", ".jpeg"))
    found = {}
    for path in sorted(folder.iterdir()):
        for each in endings:
            if path.name.lower().endswith(each.lower()) and not path.name.startswith("."):
                found[path.name[: len(path.name) - len(each)]] = path
                break
    return found
