"""The last frame carried on by its motion: what comes next if nothing grows, decays or turns.

Semi-Lagrangian, backwards: what is at a place in a step came from where the motion there points back to. The way
back is followed step by step, for motion differs from place to place:

    lead 3     o        <- a place
              /
    lead 2   o          each step asks the motion where it has come to
            /
    lead 1 o
           |
    now    o            <- its rain is read here, between four pixels
"""

from __future__ import annotations

import numpy as np

from outsize.data.frames import UNKNOWN, Levels, known
from outsize.data.motion.flow import Motion


def advected(frame: Levels, motion: Motion, num_leads: int) -> Levels:
    """Return the frames (lead, row, column) that motion alone makes of the last one.

    What comes from outside of the picture, or from where rain is not known, is unknown.
    """
    from scipy.ndimage import map_coordinates

    height, width = frame.shape
    rows, cols = np.mgrid[:height, :width].astype(np.float32)
    is_known = known(frame)
    rain, sure = np.where(is_known, frame, 0).astype(np.float32), is_known.astype(np.float32)
    made = np.empty((num_leads, height, width), np.int16)
    for lead in range(num_leads):
        down, right = (map_coordinates(each, (rows, cols), order=1, mode="nearest") for each in motion)
        rows, cols = rows - down, cols - right
        levels = map_coordinates(rain, (rows, cols), order=1, mode="constant")
        share = map_coordinates(sure, (rows, cols), order=1, mode="constant")
        made[lead] = np.where(share > 0.5, np.rint(levels), UNKNOWN)
    return made


def persistent(frame: Levels, num_leads: int) -> Levels:
    """Return the last frame for every lead: what comes next if nothing moves."""
    return np.repeat(frame[None], num_leads, axis=0)
