"""Looks at a folder of images and labels and guesses what they are: format, names, bands, classes, split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from outsize.data.formats import Dataset, recognise
from outsize.data.split import BadFile
from outsize.errors import DataError, explain, found_in
from outsize.files.walk import files_below
from outsize.raster.polygons import attribute_values, is_vector, list_attributes
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.tiles.window import middle_window

_IMAGES = (".tif", ".tiff", ".jpg", ".jpeg", ".png", ".jp2")
_LABEL_WORDS = ("label", "labels", "mask", "masks", "gt", "truth", "annotation", "annotations", "seg")
_IMAGE_WORDS = ("image", "images", "img", "imgs", "scene", "scenes", "rgb", "photos", "pictures")
_MAX_READ = 60  # label files looked into for class values
_MAX_CLASSES = 64
_SCENE_PX = 4096**2  # above this an image is a scene that is split into blocks


Look = TypeVar("Look")


@dataclass(frozen=True)
class Guess:
    """What a folder seems to hold, in the words of a job file."""

    format: str
    images: tuple[str, ...]  # patterns below the folder
    labels: str
    classes: tuple[tuple[str, int, str | None], ...]  # name, value, attribute's value
    bands: tuple[str, ...]
    split_by: str
    num_images: int
    ignore_value: int = 255
    attribute: str | None = None
    all_polygons: str | None = None
    outside: str | None = None
    is_picture: bool = False
    dataset: Dataset | None = None  # one with a layout of its own, whose other keys need not be said
    objects: bool = False  # whether labels are learnt as objects one by one
    pictures: bool = False  # whether labels are a class for each picture
    frames: bool = False  # whether there are no labels but the frames that follow
    unreadable: tuple[BadFile, ...] = ()  # of those that were looked into


def guess(folder: Path, *, objects: bool = False) -> Guess:
    """Look at a folder; refuse one in which no image has labels.

    What can be learnt in two ways is classes of pixels, or else `objects`.
    """
    dataset = recognise(folder, objects=objects)
    if dataset is not None:
        return _from_dataset(dataset)
    files = [path for path in files_below(folder) if not _is_hidden(path, folder)]
    rasters = [path for path in files if path.suffix.lower() in _IMAGES]
    vectors = [path for path in files if is_vector(path.name)]
    pairs, labels = _pair(folder, rasters)
    images = [path for path in rasters if not _is_label_name(folder, path)]
    beside = [path for path in vectors if any(image.parent == path.parent for image in images)]
    if pairs and not (objects and beside):  # a mask of classes does not tell objects apart, polygons do
        return _from_rasters(folder, pairs, labels, objects)
    if images and beside:
        here = [each for each in images if each.parent == beside[0].parent]
        found = _from_polygons(folder, here, beside)
        return replace(found, objects=True, outside=None, classes=found.classes[1:]) if objects else found
    what = f"{len(rasters)} images and {len(vectors)} files of polygons"
    need = "images with labels: NAME_labels.tif or polygons beside, or folders images/ and labels/"
    raise DataError(
        explain(f"no image with labels in {folder}", what, need, "write data.labels of a job by hand")
    )


def _from_dataset(dataset: Dataset) -> Guess:
    return Guess(
        format=dataset.format,
        images=(),
        labels=dataset.labels or "",
        classes=tuple((name, number, None) for number, name in enumerate(dataset.class_names)),
        bands=("red", "green", "blue"),
        split_by="scene",
        num_images=dataset.num_images,
        is_picture=True,
        dataset=dataset,
        objects=dataset.objects,
        pictures=dataset.pictures,
        frames=dataset.step_minutes is not None,
    )


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _words(text: str) -> list[str]:
    return text.lower().replace("-", "_").replace(".", "_").split("_")


def _is_label_name(folder: Path, path: Path) -> bool:
    """Say whether a file, or the folder it is in, is named like labels; what `folder` itself is called says nothing."""
    inner = "" if path.parent == folder else path.parent.name
    return any(word in _LABEL_WORDS for word in (*_words(path.stem), *_words(inner)))


def _pair(folder: Path, rasters: Sequence[Path]) -> tuple[dict[Path, Path], str]:
    """Find which file labels which, and the name that says so; the way that pairs most images wins."""
    images = [path for path in rasters if not _is_label_name(folder, path)]
    marked = [path for path in rasters if _is_label_name(folder, path)]
    best: tuple[dict[Path, Path], str] = ({}, "")
    for template in dict.fromkeys(_templates(images, marked)):
        pairs = {}
        for image in images:
            label = image.parent / template.format(stem=image.stem, name=image.name)
            if label.is_file() and label != image:
                pairs[image] = label
        if len(pairs) > len(best[0]):
            best = pairs, template
    return best


def _templates(images: Sequence[Path], marked: Sequence[Path]) -> Iterable[str]:
    """Yield ways to find labels, seen from an image, that at least one file suggests."""
    stems: dict[str, Path] = {image.stem: image for image in images}
    for label in marked:
        image = stems.get(label.stem)
        if image is not None and label.parent.parent == image.parent.parent and label.parent != image.parent:
            yield f"../{label.parent.name}/{{stem}}{label.suffix}"
        for stem, each in stems.items():
            if label.stem != stem and stem in label.stem:
                name = label.stem.replace(stem, "{stem}") + label.suffix
                yield name if label.parent == each.parent else f"../{label.parent.name}/{name}"
                break
        if any(word in _LABEL_WORDS for word in _words(label.stem)):
            yield label.name  # mask.tif beside the one scene of its folder


def _from_rasters(folder: Path, pairs: dict[Path, Path], labels: str, objects: bool) -> Guess:
    infos, bad = _readable(list(pairs)[:_MAX_READ], describe)
    masks, bad_masks = _readable(list(pairs.values())[:_MAX_READ], _dtype_and_values)
    per_file = [found for _, found in masks]
    ignore_value = 255
    values = sorted({value for found in per_file for value in found} - {ignore_value})
    is_no_class = len(values) > _MAX_CLASSES or any(value > 253 for value in values)
    # bytes of many values may be a soft mask, or a photo: more than bytes are there to number objects
    is_wide = masks[0][0] != "uint8"
    objects = objects or (is_no_class and is_wide and all(map(_are_ids, per_file)))
    if is_no_class and not objects:
        need, remedy = (
            f"at most {_MAX_CLASSES} class numbers from 0 to 253",
            "save class numbers, or where values number objects say --objects",
        )
        raise DataError(
            explain(f"labels in {folder} seem to be no classes", f"{len(values)} values", need, remedy)
        )
    classes: list[tuple[str, int, str | None]] = [(f"class_{value}", value, None) for value in values]
    if objects:
        classes = [("object", 1, None)]
    is_picture = not infos[0].driver
    return Guess(
        format="folders" if is_picture else "scenes",
        images=_patterns(folder, list(pairs)),
        labels=labels,
        classes=tuple(classes) if objects else _two(classes),
        bands=_bands(infos[0]),
        split_by=_split(folder, list(pairs), infos),
        num_images=len(pairs),
        is_picture=is_picture,
        objects=objects,
        unreadable=(*bad, *bad_masks),
    )


def _from_polygons(folder: Path, images: list[Path], vectors: list[Path]) -> Guess:
    infos, bad = _readable(images[:_MAX_READ], describe)
    vector = vectors[0]
    own = {image.with_suffix(vector.suffix) for image in images}
    labels = f"{{stem}}{vector.suffix}" if len(vectors) > 1 and set(vectors) >= own else vector.name
    found = _class_attribute(vector)
    classes: list[tuple[str, int, str | None]] = [("background", 0, None)]
    if found is None:
        classes.append((vector.stem, 1, None))
    else:
        names = [text for text in sorted(found[1]) if text]
        classes += [(text, number, text) for number, text in enumerate(names, start=1)]
    return Guess(
        format="scenes",
        images=_patterns(folder, images),
        labels=labels,
        classes=tuple(classes),
        bands=_bands(infos[0]),
        split_by=_split(folder, images, infos),
        num_images=len(images),
        attribute=None if found is None else found[0],
        all_polygons=vector.stem if found is None else None,
        outside="background",
        unreadable=bad,
    )


def _readable(paths: Sequence[Path], look: Callable[[Path], Look]) -> tuple[list[Look], tuple[BadFile, ...]]:
    """Look into files; those that cannot be read are returned by name, and only all of them are too many."""
    found, bad = [], []
    for path in paths:
        try:
            found.append(look(path))
        except DataError as error:
            bad.append(BadFile(path, str(error)))
    if not found:
        what = f"none of {len(bad)} that were tried, {bad[0].path.name} among them: {found_in(bad[0].reason)}"
        remedy = "copy the files again from their source"
        raise DataError(
            explain(f"nothing in {bad[0].path.parent} can be read", what, "readable files", remedy)
        )
    return found, tuple(bad)


def _class_attribute(path: Path) -> tuple[str, Counter[str]] | None:
    """Return the attribute that has few values on many polygons, the fewest but at least two; None if none has."""
    best = None
    for name in list_attributes(path, None):
        counts = attribute_values(path, None, name)
        num = len([text for text in counts if text])
        is_few = 2 <= num <= min(_MAX_CLASSES, counts.total() // 2)
        if is_few and not counts.get("") and (best is None or num < len(best[1])):
            best = name, counts
    return best


def _are_ids(values: set[int]) -> bool:
    """Say whether values number objects: as good as all numbers from 1 on."""
    return not values - {0} or max(values) <= 2 * len(values)


def _dtype_and_values(path: Path) -> tuple[str, set[int]]:
    info = describe(path, ids=True)
    if info.num_bands != 1:
        return info.dtype, set()
    with SceneReader(info) as reader:
        raster = reader.read(middle_window(info.height, info.width, 8192))
    return info.dtype, {int(value) for value in np.unique(raster.pixels[0][raster.valid])}


def _two(classes: list[tuple[str, int, str | None]]) -> tuple[tuple[str, int, str | None], ...]:
    free = (number for number in range(254) if number not in {value for _, value, _ in classes})
    while len(classes) < 2:  # a map needs two; the second is for the user to name
        value = next(free)
        classes.append((f"class_{value}", value, None))
    return tuple(classes)


def _bands(info: SceneInfo) -> tuple[str, ...]:
    if all(info.band_names):
        return info.band_names
    known = {1: ("grey",), 3: ("red", "green", "blue")}
    return known.get(info.num_bands, tuple(f"band_{number}" for number in range(1, info.num_bands + 1)))


def _patterns(folder: Path, images: Sequence[Path]) -> tuple[str, ...]:
    """Write a pattern for each kind of place: tile1/images and tile2/images become tile*/images."""
    found: dict[str, None] = {}
    for suffix in sorted({image.suffix for image in images}):
        parents = [image.parent.relative_to(folder).parts for image in images if image.suffix == suffix]
        for depth in sorted({len(parts) for parts in parents}):
            level = [set(column) for column in zip(*(p for p in parents if len(p) == depth), strict=True)]
            place = [parts.pop() if len(parts) == 1 else "*" for parts in level]
            alone = [image for image in images if image.suffix == suffix]
            name = alone[0].name if len(images) == 1 else f"*{suffix}"
            found["/".join((*place, name))] = None
    return tuple(found)


def _split(folder: Path, images: Sequence[Path], infos: Sequence[SceneInfo]) -> str:
    groups = {image.relative_to(folder).parts[0] for image in images if image.parent != folder}
    groups -= set(_IMAGE_WORDS)
    if len(groups) >= 3:
        return "folder"
    few = len(images) < 6 and min(info.num_px for info in infos) >= 1024**2
    return "blocks" if few or len(images) < 3 or infos[0].num_px > _SCENE_PX else "scene"
