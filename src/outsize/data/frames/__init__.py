"""Frames of rain, one after the other at a fixed step, as whole numbers that a network learns well.

rain in mm/h <--> levels (levels) --> NumberGrid, NumberGrids: those to come, as they are learnt (numbers)
"""

from outsize.data.frames.levels import SCALE, UNKNOWN, Levels, known, to_levels, to_rain
from outsize.data.frames.numbers import NumberGrid, NumberGrids

__all__ = ["SCALE", "UNKNOWN", "Levels", "NumberGrid", "NumberGrids", "known", "to_levels", "to_rain"]
