"""Pictures with one class each: in one file of many, or in a folder for each class.

IDX file, class numbers beside it --> find_idx ------.
ROOT/CLASS/picture --------------> find_class_folders +--> LabelledScene: pictures of one size in it, labels of one
                                                           value for all pixels of a picture
"""

from outsize.data.formats.classed.folders import class_folders, find_class_folders
from outsize.data.formats.classed.idx import find_idx, idx_pairs, read_idx

__all__ = ["class_folders", "find_class_folders", "find_idx", "idx_pairs", "read_idx"]
