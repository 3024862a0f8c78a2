"""COCO files: pictures with outlines, runs or boxes, as classes of pixels, objects or boxes.

annotations.json --> CocoFile (file) --> find_coco (finding) --> masks: classes of pixels
                      | outlines, runs: masks                    objects: each with its mask
                      '-> recognise                              boxes
objects of a scene --> write_results, and back (results)
"""

from outsize.data.formats.coco.file import MOST_TEXT_BYTES, CocoFile, read_coco
from outsize.data.formats.coco.finding import find_coco
from outsize.data.formats.coco.results import read_results, write_results

__all__ = ["MOST_TEXT_BYTES", "CocoFile", "find_coco", "read_coco", "read_results", "write_results"]
