"""The format `coco`: pictures with the outlines of a COCO file as masks of classes; TACO is one of them.

annotations.json                 data.labels, shared out by data.split; or a file each in data.train, val, test
batch_1/000006.jpg               pictures, where the file says, beside it or in a folder `images`
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.formats.coco.boxes import open_boxed
from outsize.data.formats.coco.file import CocoFile, CocoPicture, read_coco
from outsize.data.formats.coco.masks import burn_classes
from outsize.data.formats.coco.objects import CocoEntry, fitting, open_outlined
from outsize.data.formats.folders import pair
from outsize.data.formats.layout import Layout, share_pictures
from outsize.data.made import digest, made_labels
from outsize.data.scenes import LabelledScene
from outsize.data.split import SPLITS
from outsize.errors import DataError, JobError, UnsafeFileError, explain, listed
from outsize.job import DataSection
from outsize.known.tables import BACKGROUND, class_map
from outsize.raster.reading import upright

_NUM_PROBED = 200  # pictures by which the folder of all is found


def find_coco(data: DataSection, seed: int) -> Layout:
    """Find the pictures of one COCO file, or of one for each split; say which are missing and how to get them."""
    root, entries = Path(data.root), dict[Path, CocoEntry]()
    named = {split: getattr(data, split) for split in SPLITS}
    files = {split: [Path(name) for name in names] for split, names in named.items()}
    if not any(named.values()):
        files = {"": [root / data.labels]}
    shared: dict[str, tuple[Path, ...]] = {}
    faults = []
    values: dict[str, int] = {}
    for split, paths in files.items():
        held: dict[Path, None] = {}
        for path in paths:
            coco = read_coco(path)
            values |= {} if data.boxes else category_values(coco, data)
            found, missing = _find_pictures(coco, root, data.allow_references)
            entries |= {place: CocoEntry(picture, path) for place, picture in found.items()}
            held |= dict.fromkeys(found)
            if missing:
                faults.append(_missing(coco, root, missing))
        shared[split] = tuple(held)
    if "" in shared and not faults:
        shared = share_pictures(shared[""], data, seed)
    outside = data.ignore_value[0] if data.outside is None else data.class_value("outside")

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        if data.boxes:
            return open_boxed(path, entries[path], data, cache)
        if data.objects:
            return open_outlined(path, entries[path], data, cache, values)
        return _open(path, entries[path], cache, values, (outside, data.ignore_value[0]))

    return Layout(shared, open_scene, faults=tuple(faults))


def category_values(coco: CocoFile, data: DataSection) -> dict[str, int]:
    """Return the class value of each category that is annotated; refuse one that has no class."""
    values = {each.attribute or each.name: each.value for each in data.classes}
    joined = class_map(data.class_map) if data.class_map is not None else None
    used = dict.fromkeys(each.category for picture in coco.pictures for each in picture.annotations)
    found = {}
    for category in used:
        name = category if joined is None else joined.get(category.lower())
        if name == BACKGROUND and data.objects and name not in values:
            continue  # a class map that leaves them out
        if name == BACKGROUND and data.outside is not None:
            name = data.outside
        if name not in values:
            known = sorted(joined or values)
            near = difflib.get_close_matches(category, known, n=1, cutoff=0.0)
            where = f"class map {data.class_map}" if joined else "data.classes"
            need = f"one of {listed(known, 6)}"
            raise JobError(
                explain(
                    f"category of {coco.path} has no class",
                    f"{category!r}, not in {where}",
                    need,
                    f"add a class whose `attribute` is that name; nearest: {near[0]!r}",
                )
            )
        found[category] = values[name]
    return found


def _find_pictures(
    coco: CocoFile, root: Path, allow_outside: bool
) -> tuple[dict[Path, CocoPicture], list[str]]:
    """Return the pictures that are there, and the names of those that are not."""
    beside = coco.path.parent
    stem = coco.path.name.partition(".")[0]
    # instances_train2017.json lies in annotations/, its pictures in train2017/
    places = [root, beside, root / "images", beside / "images", root / stem.rpartition("_")[2]]
    names = [picture.file_name for picture in coco.pictures]
    for name in names:
        if not allow_outside and (Path(name).is_absolute() or ".." in Path(name).parts):
            need, remedy = "pictures below the dataset", "if you trust the file, set data.allow_references"
            raise UnsafeFileError(explain(f"{coco.path} points outside its folder", name, need, remedy))
    counts = [sum(_file(place, name) is not None for name in names[:_NUM_PROBED]) for place in places]
    folder = places[counts.index(max(counts))]
    found, missing = {}, []
    for picture in coco.pictures:
        path = _file(folder, picture.file_name)
        if path is None:
            missing.append(picture.file_name)
        else:
            found[path] = picture
    return found, missing


def _file(folder: Path, name: str) -> Path | None:
    """Return a picture, whose suffix may be in other letters than the name says: .JPG for .jpg."""
    path = folder / name
    for each in (path, path.with_suffix(path.suffix.lower()), path.with_suffix(path.suffix.upper())):
        if os.path.isfile(each):  # noqa: PTH113 - a name too long, or with a zero in it, is that of no file
            return each
    return None


def _missing(coco: CocoFile, root: Path, missing: list[str]) -> DataError:
    num = len(coco.pictures)
    found = f"{len(missing)} of {num} not below {root}: {listed(missing)}"
    remedy = "copy them there, or correct data.root"
    if coco.has_addresses:
        remedy = (
            "fetch them there from the addresses in the file (coco_url, flickr_url), or correct data.root"
        )
    if {category.lower() for category in coco.categories} <= set(class_map("taco-60")):
        remedy = (
            f"fetch them into {root} with download.py of https://github.com/pedropro/TACO, "
            "which goes on where it stopped, or unpack https://zenodo.org/records/3587843 there"
        )
    return DataError(explain(f"pictures of {coco.path} are missing", found, f"all {num} pictures", remedy))


def _open(
    path: Path, entry: CocoEntry, cache: Path, values: Mapping[str, int], fill: tuple[int, int]
) -> LabelledScene:
    """Describe a picture with the mask burnt for it; `fill` are the values outside of objects, and to ignore."""
    image, orientation, as_stored = fitting(path, entry)
    picture, size = entry.picture, (entry.picture.height, entry.picture.width)

    def make() -> NDArray[np.uint8]:
        try:
            labels = burn_classes(picture, values, outside_value=fill[0], ignore_value=fill[1])
        except ValueError as error:
            need, remedy = "{} x {} px".format(*size), "export the file again"
            raise DataError(
                explain(f"a mask of {path} in {entry.source} cannot be read", error, need, remedy)
            ) from error
        # outlines were drawn on the upright picture; only where the size says so, on it as it is stored
        return np.ascontiguousarray(upright(labels, orientation)) if as_stored else labels

    key = digest(repr((picture, sorted(values.items()), fill, orientation)))
    return pair(image, made_labels(path, cache, f"coco {key}", make))
