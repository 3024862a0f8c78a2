"""How rain moves: motion between frames by optical flow, and frames carried on by it.

frames --> find_motion (flow): OpenCV, pysteps --> advected (advect): the last frame, lead by lead
                                                   persistent: the same without motion
"""

from outsize.data.motion.advect import advected, persistent
from outsize.data.motion.flow import find_motion

__all__ = ["advected", "find_motion", "persistent"]
