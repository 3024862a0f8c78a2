"""Boxes of pictures as arrays: what label files say of them, and what a detector found.

label files -> data/formats -> Boxes -> data/targets -> a training
                               Boxes -> metrics/kitti <- Boxes of a detector
"""

from outsize.data.boxes.boxes import IGNORED, Boxes, gather, no_boxes, overlaps
from outsize.data.boxes.kitti_text import kitti_lines, read_kitti, read_lines

__all__ = [
    "IGNORED",
    "Boxes",
    "gather",
    "kitti_lines",
    "no_boxes",
    "overlaps",
    "read_kitti",
    "read_lines",
]
