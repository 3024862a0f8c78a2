"""What lies on disk, one format per file.

job's data --> find_layout (by_name): FORMATS --> patterns (scenes, folders), ids, masks, camvid, cityscapes
                  |                               boxed/ (KITTI, VOC, YOLO, idl lists), classed/, coco/, radar
                  '-> Layout: images of each split, and how one is opened with its labels
a folder --> recognise --> Dataset: which of these it is;  all files that are read --> files_of
"""

from outsize.data.formats.boxed import kitti_lines
from outsize.data.formats.by_name import find_layout
from outsize.data.formats.coco import read_results, write_results
from outsize.data.formats.datasets import Dataset, recognise
from outsize.data.formats.files import files_of
from outsize.data.formats.folders import pair_of

__all__ = [
    "Dataset",
    "files_of",
    "find_layout",
    "kitti_lines",
    "pair_of",
    "read_results",
    "recognise",
    "write_results",
]
