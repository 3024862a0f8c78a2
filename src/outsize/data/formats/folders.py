"""The format `folders`: many pictures, each with a mask of class numbers beside it, in a twin folder or by suffix."""

from __future__ import annotations

from pathlib import Path

from outsize.data.scenes import LabelledScene, labels_path, refuse_colours
from outsize.errors import DataError, explain
from outsize.job import DataSection
from outsize.raster.reading import Picture, SceneInfo, describe


def open_picture(path: Path, data: DataSection, cache: Path) -> LabelledScene:  # noqa: ARG001 (as open_scene)
    """Describe one picture with its mask, which must have its size."""
    image = describe(path, allow_references=data.allow_references)
    return pair(image, describe(labels_path(path, data.labels), allow_references=data.allow_references))


def pair_of(image: Picture, labels: Picture) -> LabelledScene:
    """Describe a picture and its mask, both open."""
    return pair(image.describe(), labels.describe())


def pair(image: SceneInfo, labels: SceneInfo) -> LabelledScene:
    """Put a picture and its mask together; the mask has one band and the picture's size."""
    refuse_colours(labels)
    if (labels.height, labels.width) != (image.height, image.width):
        raise DataError(
            explain(
                f"labels {labels.path} do not fit their image {image.path}",
                f"{labels.height} x {labels.width} px",
                f"{image.height} x {image.width} px",
                "label each pixel of the image",
            )
        )
    return LabelledScene(image, labels)
