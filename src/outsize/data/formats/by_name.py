"""The formats by the names that a job gives them."""

from __future__ import annotations

from collections.abc import Callable

from outsize.data.formats.boxed import find_boxed, find_idl
from outsize.data.formats.camvid import find_camvid
from outsize.data.formats.cityscapes import find_cityscapes
from outsize.data.formats.classed import find_class_folders, find_idx
from outsize.data.formats.coco import find_coco
from outsize.data.formats.layout import Layout, missing_root, refuse_keys
from outsize.data.formats.masks import find_masks
from outsize.data.formats.patterns import find_patterns
from outsize.data.formats.radar import find_radar
from outsize.job import DataSection

FORMATS: dict[str, Callable[[DataSection, int], Layout]] = {
    "scenes": find_patterns,
    "folders": find_patterns,
    "cityscapes": find_cityscapes,
    "camvid": find_camvid,
    "coco": find_coco,
    "masks": find_masks,
    "kitti": find_boxed,
    "idl": find_idl,
    "voc": find_boxed,
    "yolo": find_boxed,
    "classes": find_class_folders,
    "idx": find_idx,
    "radar": find_radar,
}


def find_layout(data: DataSection, seed: int) -> Layout:
    """Find the images of a job on disk, and how they are opened; refuse keys that its format would pass over."""
    refuse_keys(data)
    no_root = missing_root(data)
    return Layout(faults=no_root) if no_root else FORMATS[data.format](data, seed)
