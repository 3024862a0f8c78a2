"""Objects of a picture in a COCO file: each annotation is one, a crowd is a place of which nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outsize.data.formats.coco.file import Annotation, CocoPicture
from outsize.data.formats.coco.masks import burn_one
from outsize.data.formats.object_labels import with_objects
from outsize.data.object import Object, make_object
from outsize.data.object_files import UNKNOWN
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, explain
from outsize.job import DataSection
from outsize.raster.reading import Picture, SceneInfo, upright
from outsize.tiles.window import Window


@dataclass(frozen=True)
class CocoEntry:
    """A picture of a COCO file, and the file."""

    picture: CocoPicture
    source: Path


def fitting(path: Path, entry: CocoEntry) -> tuple[SceneInfo, int, bool]:
    """Describe a picture, with its EXIF orientation, and say whether it was outlined as it is stored.

    Outlines were drawn on the upright picture; only where the size says so, on it as it is stored.
    """
    with Picture(path) as opened:
        image, orientation = opened.describe(), opened.orientation
    size, upright_size = (entry.picture.height, entry.picture.width), (image.height, image.width)
    as_stored = orientation >= 5 and size != upright_size and size[::-1] == upright_size
    if size != upright_size and not as_stored:
        remedy = "get the picture in the size that was annotated"
        found, need = "{} x {} px".format(*upright_size), "{} x {} px, as the file says".format(*size)
        raise DataError(explain(f"{path} does not fit its outlines in {entry.source}", found, need, remedy))
    return image, orientation, as_stored


def open_outlined(
    path: Path, entry: CocoEntry, data: DataSection, cache: Path, values: Mapping[str, int]
) -> LabelledScene:
    """Describe a picture with its objects; `values` are the class values of categories, others are left out."""
    image, orientation, as_stored = fitting(path, entry)
    numbers = {each.value: number for number, each in enumerate(data.classes)}
    classes = {category: numbers[value] for category, value in values.items()}
    key = f"coco {entry.picture} {sorted(classes.items())} {orientation}"

    def make() -> list[Object | None]:
        wanted = [each for each in entry.picture.annotations if each.category in classes]
        try:
            return [_burnt(each, entry.picture, classes, orientation if as_stored else 1) for each in wanted]
        except ValueError as error:
            need, remedy = f"{entry.picture.height} x {entry.picture.width} px", "export the file again"
            raise DataError(
                explain(f"a mask of {path} in {entry.source} cannot be read", error, need, remedy)
            ) from error

    return with_objects(image, data, cache, key, make)


def _burnt(
    annotation: Annotation, picture: CocoPicture, classes: Mapping[str, int], orientation: int
) -> Object | None:
    window, mask = burn_one(annotation, picture.height, picture.width)
    is_outlined = bool(annotation.rings) or annotation.rle is not None
    class_id = classes[annotation.category] if is_outlined and not annotation.is_crowd else UNKNOWN
    if orientation != 1:
        whole = np.zeros((picture.height, picture.width), np.bool_)
        whole[window.slices] = mask
        mask = upright(whole, orientation)
        window = Window(0, 0, *mask.shape)
    return make_object(class_id, window, mask)
