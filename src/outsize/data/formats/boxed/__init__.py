"""Pictures with boxes: label files of several makers, and what a job calls their classes.

kitti, voc, yolo --> find_boxed --.
idl lists --------> find_idl -----+--> with_boxes: in the picture, in classes --> LabelledScene
COCO files (formats/coco) --------'
"""

from outsize.data.formats.boxed.fitting import with_boxes
from outsize.data.formats.boxed.kitti_text import kitti_lines, read_kitti
from outsize.data.formats.boxed.pictures import find_boxed, find_idl

__all__ = ["find_boxed", "find_idl", "kitti_lines", "read_kitti", "with_boxes"]
