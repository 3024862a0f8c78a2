"""Objects of labels that number them, or outline them: rasters of ids, and polygons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.formats.object_labels import Found, in_full, with_objects
from outsize.data.made import stamp
from outsize.data.object import Mask, Object, make_object
from outsize.data.scenes import LabelledScene, labels_path, polygons_of, refuse_colours, scene_name
from outsize.errors import DataError, JobError, explain
from outsize.job import DataSection
from outsize.raster.labels import lie_on_grid
from outsize.raster.polygons import burn_single, is_vector
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.tiles.window import Window

_STRIP_PX = 2**24  # read at once


def open_objects(path: Path, data: DataSection, cache: Path) -> LabelledScene:
    """Describe one image with the objects that its labels number (a raster of ids) or outline (polygons)."""
    image = in_full(path, data)
    source = labels_path(scene_name(path, data), data.labels)
    if is_vector(source.name):
        return _from_polygons(image, source, data, cache)
    if len(data.classes) != 1:
        need = "one class, for numbers do not tell which"
        remedy = "list one class, or give polygons, a COCO file or a mask for each object"
        found = f"{len(data.classes)} classes"
        raise JobError(explain(f"{source} numbers objects of unknown class", found, need, remedy))
    labels = describe(source, allow_references=data.allow_references, ids=True)
    refuse_colours(labels)
    if not lie_on_grid(labels, image):
        need, remedy = "that of its image", "reproject it (gdalwarp -r near)"
        raise DataError(explain(f"{source} has another coordinate system", "another", need, remedy))
    return with_objects(
        image, data, cache, f"ids {stamp(source)}", lambda: objects_of_ids(_strips(labels), 0)
    )


def _from_polygons(image: SceneInfo, source: Path, data: DataSection, cache: Path) -> LabelledScene:
    polygons = polygons_of(source, data)
    numbers = {each.value: number for number, each in enumerate(data.classes)}

    def make() -> Found:
        return [
            make_object(numbers[value], window, mask, clipped=clipped)
            for value, window, mask, clipped in burn_single(polygons, image)
        ]

    return with_objects(image, data, cache, f"polygons {stamp(source)} {image.georef} {polygons}", make)


def objects_of_ids(strips: Iterable[tuple[Window, NDArray[Any]]], class_id: int) -> list[Object]:
    """Return the objects of a raster of ids, read in strips; 0 is none, and an id is one object in all its parts."""
    from scipy import ndimage

    pieces: dict[int, list[tuple[Window, Mask]]] = {}
    for strip, ids in strips:
        values, numbers = np.unique(ids, return_inverse=True)
        # find_objects counts from 1 and passes 0 over
        numbers = numbers.reshape(ids.shape) + (0 if values[0] == 0 else 1)
        names = values[1:] if values[0] == 0 else values
        for number, place in enumerate(ndimage.find_objects(numbers), start=1):
            rows, cols = place
            window = Window(strip.row + rows.start, strip.col + cols.start, *numbers[place].shape)
            pieces.setdefault(int(names[number - 1]), []).append((window, numbers[place] == number))
    return [_joined(class_id, parts) for _, parts in sorted(pieces.items())]


def _joined(class_id: int, parts: list[tuple[Window, Mask]]) -> Object:
    if len(parts) == 1:
        return Object(class_id, *parts[0])
    row, col = min(window.row for window, _ in parts), min(window.col for window, _ in parts)
    height = max(window.row_end for window, _ in parts) - row
    width = max(window.col_end for window, _ in parts) - col
    whole, mask = Window(row, col, height, width), np.zeros((height, width), np.bool_)
    for window, part in parts:
        mask[window.within(whole).slices] |= part
    return Object(class_id, whole, mask)


def _strips(labels: SceneInfo) -> Iterator[tuple[Window, NDArray[Any]]]:
    num_rows = max(1, _STRIP_PX // labels.width)
    with SceneReader(labels) as reader:
        for row in range(0, labels.height, num_rows):
            window = Window(row, 0, num_rows, labels.width).intersect(labels.window)
            ids = reader.read(window).pixels[0]
            if ids.min() < 0:
                need, remedy = "0 for none, and ids above it", "declare it as nodata (gdal_edit.py -a_nodata)"
                raise DataError(explain(f"{labels.path} holds what is no id", int(ids.min()), need, remedy))
            yield window, ids
