"""What is learnt of a sample and of a batch; the only place that knows how each kind changes with its picture.

    reading -> Target  -> flip, turn, resize -> stack -> Targets -> part, crop -> the sums of a task's losses
               of one sample                             of a batch

| of a sample | of a batch     | what is learnt                                                           |
|-------------|----------------|--------------------------------------------------------------------------|
| ClassRaster | ClassRasters   | a class for each pixel                                                   |
| ObjectList  | ObjectLists    | objects with masks; their raster of classes says where windows are drawn |
| BoxList     | BoxLists       | objects with boxes; some are neutral                                     |
| OneClass    | OneClassEach   | one class for the whole picture                                          |
| NumberGrid  | NumberGrids    | grids of numbers, where they are known, and when they begin: data/frames |
"""

from outsize.data.targets.boxes import BoxList, BoxLists
from outsize.data.targets.objects import ObjectList, ObjectLists
from outsize.data.targets.one_class import OneClass, OneClassEach
from outsize.data.targets.raster import ClassRaster, ClassRasters

__all__ = [
    "BoxList",
    "BoxLists",
    "ClassRaster",
    "ClassRasters",
    "ObjectList",
    "ObjectLists",
    "OneClass",
    "OneClassEach",
]
