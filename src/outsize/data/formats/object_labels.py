"""Turns the objects of an image into what a training reads: a file of objects, and a label raster of their classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.made import are_made_of, digest, made_labels
from outsize.data.object import Object, crop
from outsize.data.object_files import UNKNOWN, HeldObjects, load_objects, save_objects
from outsize.data.scenes import LabelledScene, open_image
from outsize.job import DataSection
from outsize.raster.labels import write_labels
from outsize.raster.reading import SceneInfo, describe
from outsize.tiles.window import Window

Found = Sequence[Object | None]  # None for one that has no pixel


def with_objects(
    image: SceneInfo, data: DataSection, cache: Path, key: str, make: Callable[[], Found]
) -> LabelledScene:
    """Describe an image with its objects, made once and kept in `cache`; `key` names what they are made of.

    The raster of classes is for counting and for drawing windows where a rare class is; around objects, and where
    nobody knows, it is ignored. Where objects overlap the smaller one is on top.
    """
    values, ignored = [each.value for each in data.classes], data.ignore_value[0]
    key = digest(f"{key} {values} {ignored} {image.height} {image.width}")
    target = cache / f"{image.path.stem}-{digest(str(image.path.resolve()), 8)}.npz"
    if not are_made_of(target, key):
        found = make()
        objects = [each for each in found if each is not None]
        save_objects(target, objects, key, num_lost=len(found) - len(objects))
    held: list[HeldObjects] = []

    def paint(window: Window) -> NDArray[np.uint8]:
        if not held:
            held.append(load_objects(target))
        return _painted(crop(held[0].near(window), window), window, values, ignored)

    if not image.driver:
        labels = made_labels(image.path, cache, f"objects {key}", lambda: paint(image.window))
        return LabelledScene(image, labels, objects=target)
    raster = target.with_suffix(".tif")
    write_labels(raster, image, ignored, key, paint)
    return LabelledScene(image, describe(raster), objects=target)


def in_full(path: Path, data: DataSection) -> SceneInfo:
    """Describe an image in full size: objects are made on it, and brought to a smaller one where they are read."""
    return open_image(path, data.model_copy(update={"shrink": 1}))


def _painted(
    objects: Sequence[Object], window: Window, values: Sequence[int], ignored: int
) -> NDArray[np.uint8]:
    labels = np.full((window.height, window.width), ignored, np.uint8)
    for each in sorted(objects, key=lambda each: -each.num_px):
        if each.class_id != UNKNOWN:
            labels[each.window.slices][each.mask] = values[each.class_id]
    return labels
