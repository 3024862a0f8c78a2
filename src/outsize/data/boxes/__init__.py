"""Boxes of pictures as arrays: what label files say of them, and what a detector found.

label files -> data/formats/boxed -> SceneBoxes -> BoxFiles -> data/targets -> a training
               data/formats/boxed -> Boxes -> metrics/kitti <- Boxes of a detector
"""

from outsize.data.boxes.boxes import IGNORED, Boxes, gather, no_boxes, overlaps
from outsize.data.boxes.store import NEUTRAL, BoxFiles, SceneBoxes

__all__ = ["IGNORED", "NEUTRAL", "BoxFiles", "Boxes", "SceneBoxes", "gather", "no_boxes", "overlaps"]
