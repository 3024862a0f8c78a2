"""Boxes of a picture in a COCO file: those that annotations tell, or those around their outlines."""

from __future__ import annotations

from pathlib import Path

from outsize.data.boxes import IGNORED, Boxes, gather
from outsize.data.formats.boxed import with_boxes
from outsize.data.formats.coco.file import Annotation
from outsize.data.formats.coco.masks import burn_one
from outsize.data.formats.coco.objects import CocoEntry, fitting
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, explain
from outsize.job import DataSection
from outsize.known.tables import BACKGROUND, class_map


def open_boxed(path: Path, entry: CocoEntry, data: DataSection, cache: Path) -> LabelledScene:
    """Describe a picture with its boxes; a crowd is neither learnt nor scored."""
    image, orientation, as_stored = fitting(path, entry)
    if as_stored:
        need, remedy = "boxes on the upright picture", "turn the picture, or export the boxes again"
        raise DataError(
            explain(
                f"boxes of {path} lie on it as it is stored", f"EXIF orientation {orientation}", need, remedy
            )
        )
    names = None if data.class_map is None else class_map(data.class_map)

    def make() -> Boxes:
        rows, labels = [], []
        for each in entry.picture.annotations:
            name = each.category if names is None else names.get(each.category.lower(), each.category)
            if name != BACKGROUND:
                rows.append(_sides(each, entry))
                labels.append(IGNORED if each.is_crowd else name)
        return gather(rows, labels)

    source = f"{entry.source}, {path.name}"
    return with_boxes(image, data, cache, source, f"coco {entry.picture} {data.class_map}", make)


def _sides(annotation: Annotation, entry: CocoEntry) -> tuple[float, float, float, float]:
    if annotation.box is not None:
        left, top, width, height = annotation.box
        return left, top, left + width, top + height
    window, _ = burn_one(annotation, entry.picture.height, entry.picture.width)
    return window.col, window.row, window.col_end, window.row_end
