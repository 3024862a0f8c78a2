"""The format `scenes`: large rasters, each with a label raster of the same grid beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.sample import IGNORE
from outsize.errors import DataError, explain
from outsize.raster.read import SceneInfo, SceneReader, describe
from outsize.tiles.window import Window

_UNKNOWN = 254  # marks a label value that is in no class


@dataclass(frozen=True)
class LabelledScene:
    """An image and the raster that labels it, on one grid."""

    image: SceneInfo
    labels: SceneInfo


def find_images(patterns: Sequence[str], labels_name: str) -> tuple[Path, ...]:
    """Return the image files that the patterns name, sorted; label files among them are passed over."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        matches = sorted(path.parent.glob(path.name)) if _is_pattern(path.name) else [path]
        images = [match for match in matches if not _is_label(match, labels_name)]
        if not images:
            raise DataError(
                explain(
                    "no image found",
                    f"nothing at {pattern}",
                    "at least one file",
                    "check data.train/val/test",
                )
            )
        found.update(dict.fromkeys(images))
    return tuple(found)


def open_scenes(
    patterns: Sequence[str], labels_name: str, *, allow_references: bool = False
) -> tuple[LabelledScene, ...]:
    """Describe every image the patterns name together with its labels, and check that they fit each other."""
    scenes = []
    for path in find_images(patterns, labels_name):
        image = describe(path, allow_references=allow_references)
        labels = describe(labels_path(path, labels_name), allow_references=allow_references)
        if (image.height, image.width) != (labels.height, labels.width):
            raise DataError(
                explain(
                    f"labels {labels.path} do not fit their image",
                    f"{labels.height} x {labels.width} px",
                    f"{image.height} x {image.width} px",
                    "label each pixel of the image",
                )
            )
        scenes.append(LabelledScene(image, labels))
    return tuple(scenes)


def labels_path(image: Path, labels_name: str) -> Path:
    """Return where the labels of an image are."""
    return image.parent / labels_name.format(stem=image.stem, name=image.name)


def label_table(values: Sequence[int], ignore_value: int) -> NDArray[np.uint8]:
    """Return the table that turns label values into class indices."""
    table = np.full(256, _UNKNOWN, np.uint8)
    table[ignore_value] = IGNORE
    table[list(values)] = np.arange(len(values), dtype=np.uint8)
    return table


def read_labels(reader: SceneReader, window: Window, table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read class indices of a window; IGNORE where the label is not valid."""
    raster = reader.read(window)
    values = raster.pixels[0]
    _refuse_outside(reader, values[raster.valid], 0, 255)
    classes = table[np.where(raster.valid, values, 0).astype(np.uint8)]
    unknown = raster.valid & (classes == _UNKNOWN)
    if unknown.any():
        known = np.flatnonzero(table < _UNKNOWN).tolist()
        raise DataError(
            explain(
                f"label value outside the classes in {reader.info.path}",
                f"{int(values[unknown][0])} at {_first(unknown, window)}",
                f"one of {known}",
                "add it to data.classes or set data.ignore_value",
            )
        )
    return np.where(raster.valid, classes, np.uint8(IGNORE))


def _refuse_outside(reader: SceneReader, values: NDArray[Any], low: int, high: int) -> None:
    if values.size and (values.min() < low or values.max() > high):
        found = f"{values.min()} to {values.max()}"
        raise DataError(
            explain(
                f"label values out of range in {reader.info.path}",
                found,
                f"{low} to {high}",
                "renumber the classes",
            )
        )


def _first(mask: NDArray[np.bool_], window: Window) -> str:
    row, col = np.argwhere(mask)[0]
    return f"row {window.row + int(row)}, column {window.col + int(col)}"


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _is_label(path: Path, labels_name: str) -> bool:
    before, _, after = labels_name.replace("{name}", "{stem}").partition("{stem}")
    return path.name.startswith(before) and path.name.endswith(after) and path.name != after
