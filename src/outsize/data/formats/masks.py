"""The format `masks`: a folder for each picture, and in it a mask for each object, whose name tells its class.

a12/a12.jpg                the picture, named as its folder (.jpg, .jpeg, .png, .tif)
a12/a12-building-1.png     a mask of its size: 0 is around the object, all else is the object
a12/a12-side-road-2.png    picture, class and anything; a class may have hyphens in its name
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.data.formats.layout import Layout, share_pictures
from outsize.data.formats.object_labels import in_full, with_objects
from outsize.data.made import stamp
from outsize.data.object import Object, make_object
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, JobError, OutsizeError, explain, listed
from outsize.files.walk import matching
from outsize.job import DataSection
from outsize.raster.reading import SceneInfo, SceneReader, describe

_PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff")
_MASKS = (".png", ".tif", ".tiff")


@dataclass(frozen=True)
class MaskedPicture:
    """A picture and its masks; each mask with the name of its class."""

    path: Path
    masks: tuple[tuple[str, Path], ...]


def find_masks(data: DataSection, seed: int) -> Layout:
    """Find the pictures with their masks below the root; refuse a class that the job does not list."""
    root = Path(data.root)
    pictures, notes, faults = find_masked(root)
    classes = {each.attribute or each.name: number for number, each in enumerate(data.classes)}
    unknown = _unknown(pictures, classes)
    if unknown is not None:
        return Layout(faults=(unknown,))
    if faults or not pictures:
        return Layout(faults=tuple(faults) or (_nothing(root),))
    entries = {each.path: each for each in pictures}

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        return _open(entries[path], data, cache, classes)

    return Layout(share_pictures(list(entries), data, seed), open_scene, notes=tuple(notes))


def find_masked(root: Path) -> tuple[list[MaskedPicture], list[str], list[OutsizeError]]:
    """Return the pictures that are named as their folders, what else there is to say, and what is wrong."""
    if not root.is_dir():
        found, need = "no such folder", "a folder of folders, one for each picture"
        return [], [], [DataError(explain(f"{root} cannot be looked at", found, need, "correct data.root"))]
    pictures: list[MaskedPicture] = []
    faults: list[OutsizeError] = []
    passed: list[str] = []
    for folder in sorted({root, *(path for path in matching(root, ("**",), str(root)) if path.is_dir())}):
        files = [path for path in sorted(folder.iterdir()) if _is_file(path)]
        here = [path for path in files if path.stem == folder.name]
        others = [path for path in files if path not in here]
        masks = {path: class_in_name(path.stem, folder.name) for path in others}
        strange = [path.name for path in others if not masks[path] or path.suffix.lower() not in _MASKS]
        if not here:
            passed += [folder.name] if files else []
        elif len(here) > 1 or strange:
            need = f"one {folder.name}.jpg, and masks {folder.name}-CLASS-NUMBER.png"
            what = listed(strange or [path.name for path in here])
            remedy = "rename them, or take them out"
            faults.append(DataError(explain(f"{folder} holds other pictures", what, need, remedy)))
        else:
            pictures.append(MaskedPicture(here[0], tuple((name, path) for path, name in masks.items())))
    empty = [each.path.parent.name for each in pictures if not each.masks]
    notes = [f"{len(empty)} pictures have no mask, and are learnt as empty: {listed(empty)}"] if empty else []
    if passed:
        notes.append(
            f"{len(passed)} folders hold no picture of their name, and are passed over: {listed(passed)}"
        )
    return pictures, notes, faults


def class_in_name(stem: str, picture: str) -> str:
    """Return the class in the name of a mask: what is between the picture's name and the last hyphen."""
    if not stem.startswith(f"{picture}-"):
        return ""
    name, hyphen, _ = stem.removeprefix(f"{picture}-").rpartition("-")
    return name if hyphen else ""


def _is_file(path: Path) -> bool:
    return path.suffix.lower() in _PICTURES and not path.name.startswith(".") and path.is_file()


def _unknown(pictures: Sequence[MaskedPicture], classes: Mapping[str, int]) -> JobError | None:
    for picture in pictures:
        for name, path in picture.masks:
            if name not in classes:
                near = difflib.get_close_matches(name, list(classes), n=3, cutoff=0.0)
                need = f"one of data.classes: {listed(list(classes), 6)}"
                remedy = f"list it, or rename the file; nearest: {', '.join(map(repr, near))}"
                return JobError(
                    explain(f"{path} is of a class that the job does not list", repr(name), need, remedy)
                )
    return None


def _nothing(root: Path) -> DataError:
    found, need = "no picture named as its folder", "NAME/NAME.jpg with NAME/NAME-CLASS-1.png"
    return DataError(explain(f"no picture below {root}", found, need, "check data.root"))


def _open(
    picture: MaskedPicture, data: DataSection, cache: Path, classes: Mapping[str, int]
) -> LabelledScene:
    image = in_full(picture.path, data)
    key = f"masks {[(classes[name], stamp(path)) for name, path in picture.masks]}"

    def make() -> list[Object]:
        return [_read(path, image, classes[name], data) for name, path in picture.masks]

    return with_objects(image, data, cache, key, make)


def _read(path: Path, image: SceneInfo, class_id: int, data: DataSection) -> Object:
    mask = describe(path, allow_references=data.allow_references)
    if (mask.height, mask.width) != (image.height, image.width):
        found, need = f"{mask.height} x {mask.width} px", f"{image.height} x {image.width} px"
        remedy = "draw the mask on the picture as it is"
        raise DataError(explain(f"mask {path} does not fit its picture {image.path}", found, need, remedy))
    with SceneReader(mask) as reader:
        pixels = reader.read(mask.window).pixels[0]  # of several bands the first, as such masks are made
    made = make_object(class_id, mask.window, pixels != 0)
    if made is None:
        need, remedy = "an object", "draw it, or remove the file"
        raise DataError(explain(f"mask {path} is empty", "0 in every pixel", need, remedy))
    return made
