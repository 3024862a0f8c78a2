"""The format `scenes`: large rasters, each with labels beside it: a raster, or polygons."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.bands import in_order
from outsize.data.sample import IGNORE
from outsize.errors import DataError, JobError, explain
from outsize.files.walk import matching
from outsize.job import DataSection
from outsize.raster.labels import lie_on_grid, warp_labels
from outsize.raster.polygons import PolygonLabels, burn_labels, is_vector, list_attributes
from outsize.raster.reading import SceneInfo, SceneReader, describe, stack_bands
from outsize.tiles.window import Window

_UNKNOWN = 254  # marks a label value that is in no class


@dataclass(frozen=True)
class LabelledScene:
    """An image and the raster that labels it, on one grid, and the parts of it that belong to a split."""

    image: SceneInfo
    labels: SceneInfo
    areas: tuple[Window, ...] = ()  # empty: all of it
    objects: Path | None = None  # the file of its objects, where the labels are objects one by one
    boxes: Path | None = None  # the file of its boxes, where the labels are boxes
    picture_px: tuple[int, int] | None = (
        None  # of the pictures below one another in it that have one class each
    )
    is_numbers: bool = False  # whether the labels are grids of numbers, one in each band

    @property
    def whole_px(self) -> tuple[int, int]:
        """Height and width of what a model may see at once: the scene, or each of the pictures in it."""
        return self.picture_px or (self.image.height, self.image.width)

    def shrunk(self, shrink: int) -> LabelledScene:
        """Return the scene read at a part of its size."""
        labels = self.labels.shrunk(shrink, nearest=True)
        return replace(self, image=self.image.shrunk(shrink), labels=labels)


def find_images(patterns: Sequence[str], labels_name: str, *, folders: bool = False) -> tuple[Path, ...]:
    """Return the image files that the patterns name, sorted; label files among them are passed over.

    `folders`: a scene may be a folder too.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        images = [
            match
            for match in _matches(pattern)
            if not _is_label(match, labels_name) and (folders or not match.is_dir() or str(match) == pattern)
        ]
        if not images:
            raise DataError(
                explain(
                    "no image found",
                    f"nothing at {pattern}",
                    "at least one file",
                    "check data.images, or data.train/val/test",
                )
            )
        found.update(dict.fromkeys(images))
    return tuple(found)


def open_scenes(
    patterns: Sequence[str], labels_name: str, *, allow_references: bool = False
) -> tuple[LabelledScene, ...]:
    """Describe every image the patterns name together with its label raster of the same grid."""
    scenes = []
    for path in find_images(patterns, labels_name):
        image = describe(path, allow_references=allow_references)
        labels = describe(labels_path(path, labels_name), allow_references=allow_references)
        lie_on_grid(labels, image)
        scenes.append(LabelledScene(image, labels))
    return tuple(scenes)


def open_scene(path: Path, data: DataSection, cache: Path) -> LabelledScene:
    """Describe one image with its labels; labels that are polygons or lie elsewhere are made a raster in `cache`."""
    image = open_image(path, data)
    source = labels_path(scene_name(path, data), data.labels)
    target = cache / f"{scene_name(path, data).stem}-{_digest(str(path.resolve()), 8)}.tif"
    if is_vector(source.name):
        polygons = polygons_of(source, data)
        key = _key(source, image, str(polygons), str(data.ignore_value))
        burn_labels(polygons, image, target, ignore_value=data.ignore_value[0], key=key)
        return LabelledScene(image, describe(target))
    labels = describe(source, allow_references=data.allow_references)
    refuse_colours(labels)
    if lie_on_grid(labels, image):
        return LabelledScene(image, labels)
    key = _key(source, image, str(data.ignore_value))
    warp_labels(labels, image, target, ignore_value=data.ignore_value[0], key=key)
    return LabelledScene(image, describe(target))


def open_image(path: Path, data: DataSection) -> SceneInfo:
    """Describe one image: a file, or the stack of its bands; read in the order of data.bands where that is given."""
    if not data.stack:
        info = describe(path, allow_references=data.allow_references).shrunk(data.shrink)
        return in_order(data.bands, info)
    return stack_bands(path, stack_files(path, data), allow_references=data.allow_references)


def stack_files(path: Path, data: DataSection) -> dict[str, Path]:
    """Return the file of each band of a stacked scene, in the order of data.bands where that is given."""
    if data.bands and sorted(data.bands) != sorted(data.stack):
        need, remedy = f"the names of data.stack: {', '.join(data.stack)}", "name the same bands in both"
        raise JobError(explain("data.bands and data.stack differ", ", ".join(data.bands), need, remedy))
    named = scene_name(path, data)
    folder = path if path.is_dir() else path.parent
    files = {}
    for band in data.bands or data.stack:
        name = data.stack[band].format(stem=named.stem, name=named.name)
        found = _matches(str(folder / name))
        if len(found) != 1:
            what = ", ".join(each.name for each in found[:3]) or f"nothing at {folder / name}"
            remedy = f"correct data.stack.{band}"
            raise DataError(explain(f"band {band} of {path} is not clear", what, "one file", remedy))
        files[band] = found[0]
    return files


def scene_name(path: Path, data: DataSection) -> Path:
    """Return the path whose stem names a scene.

    An image may be named by one of its bands: with stack.red = "{stem}_B04.tif", a_B04.tif is the scene a.
    """
    for template in data.stack.values():
        before, stem, after = template.partition("{stem}")
        if stem and not path.is_dir() and path.name.startswith(before) and path.name.endswith(after):
            inner = path.name[len(before) : len(path.name) - len(after)]
            return path.with_name(inner + path.suffix)
    return path


def labels_path(image: Path, labels_name: str) -> Path:
    """Return where the labels of an image are."""
    return image.parent / labels_name.format(stem=image.stem, name=image.name)


def refuse_colours(labels: SceneInfo) -> None:
    """Refuse labels of several bands: a colour is no class."""
    if labels.num_bands != 1:
        remedy = "save class numbers as one band (a grey or indexed picture) instead of colours"
        raise DataError(
            explain(f"labels {labels.path} are colours", f"{labels.num_bands} bands", "one band", remedy)
        )


def label_table(values: Sequence[int], ignore_value: int | Sequence[int]) -> NDArray[np.uint8]:
    """Return the table that turns label values into class indices."""
    table = np.full(256, _UNKNOWN, np.uint8)
    table[np.atleast_1d(ignore_value)] = IGNORE
    table[list(values)] = np.arange(len(values), dtype=np.uint8)
    return table


def read_labels(reader: SceneReader, window: Window, table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read class indices of a window; IGNORE where the label is not valid."""
    raster = reader.read(window)
    return classes_of(reader.info, raster.pixels[0], raster.valid, table, window)


def classes_of(
    labels: SceneInfo,
    values: NDArray[Any],
    valid: NDArray[np.bool_],
    table: NDArray[np.uint8],
    window: Window,
) -> NDArray[np.uint8]:
    """Turn label values of a window into class indices; IGNORE where they are not valid."""
    if values.dtype != np.uint8:
        known = values[valid]
        if known.size and (known.min() < 0 or known.max() > 255):
            found, remedy = f"{known.min()} to {known.max()}", "renumber the classes"
            raise DataError(explain(f"label values out of range in {labels.path}", found, "0 to 255", remedy))
        values = np.where(valid, values, 0).astype(np.uint8)
    classes = values.copy() if _are_classes(values, table) else table.take(values)
    unknown = classes == _UNKNOWN
    if unknown.any() and (unknown := unknown & valid).any():
        wanted = np.flatnonzero(table < _UNKNOWN).tolist()
        raise DataError(
            explain(
                f"label value outside the classes in {labels.path}",
                f"{int(values[unknown][0])} at {_first(unknown, window)}",
                f"one of {wanted}",
                "add it to data.classes or set data.ignore_value",
            )
        )
    classes[~valid] = IGNORE
    return classes


def _are_classes(values: NDArray[np.uint8], table: NDArray[np.uint8]) -> bool:
    """Say whether the table leaves all values as they are; ten times as quick as to look each of them up."""
    num = min(int(np.argmax(table != np.arange(256))), _UNKNOWN)
    # 255, in most labels what is ignored, is 0 when 1 is added
    return table[IGNORE] == IGNORE and bool(values.size) and int((values + np.uint8(1)).max()) <= num


def _first(mask: NDArray[np.bool_], window: Window) -> str:
    row, col = np.argwhere(mask)[0]
    return f"row {window.row + int(row)}, column {window.col + int(col)}"


def polygons_of(source: Path, data: DataSection) -> PolygonLabels:
    """Say what polygons mean, from the keys of the job."""
    outside = None if data.outside is None else data.class_value("outside")
    if (data.attribute is None) == (data.all_polygons is None):
        found = "neither" if data.attribute is None else "both"
        known = ", ".join(list_attributes(source, data.layer)) or "none"
        remedy = f"set one of them; attributes there: {known}"
        raise JobError(
            explain(
                f"polygons of {source} have no class", found, "data.attribute or data.all_polygons", remedy
            )
        )
    if data.all_polygons is not None:
        values = {"": data.class_value("all_polygons")}
        return PolygonLabels(source, data.layer, None, values, outside)
    values = {each.name if each.attribute is None else each.attribute: each.value for each in data.classes}
    return PolygonLabels(source, data.layer, data.attribute, values, outside)


def _key(source: Path, image: SceneInfo, *more: str) -> str:
    """Name all that decides the pixels of labels that are made."""
    about = source.stat()
    grid = (image.height, image.width, image.georef)
    return _digest(f"{source.resolve()} {about.st_size} {about.st_mtime_ns} {grid} {more}", 32)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _matches(pattern: str) -> list[Path]:
    """Return the paths that a pattern names; a star may stand in any part of it."""
    parts = Path(pattern).parts
    first = next((number for number, part in enumerate(parts) if _is_pattern(part)), None)
    if first is None:
        return [Path(pattern)]
    if os.path.lexists(pattern):  # a name with brackets in it; as a pattern it may be longer than any name
        return [Path(pattern)]
    return matching(Path(*parts[:first]), parts[first:], pattern)


def fixed_folder(pattern: str) -> Path:
    """Return the folder that a pattern looks in, up to its first star."""
    path = Path(pattern)
    first = next((number for number, part in enumerate(path.parts) if _is_pattern(part)), len(path.parts) - 1)
    return path.parent if first == len(path.parts) - 1 else Path(*path.parts[:first])


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _is_label(path: Path, labels_name: str) -> bool:
    before, _, after = labels_name.replace("{name}", "{stem}").partition("{stem}")
    return path.name.startswith(before) and path.name.endswith(after) and path.name != after
