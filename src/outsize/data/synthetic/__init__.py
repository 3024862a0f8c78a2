"""Pictures that are drawn, with labels that are right: a landscape for `outsize demo`, and streets.

fields, roads, water (layout) --> reflectances of each band (spectra) --> draw_scene (scenes)
cars, people, houses (street_things) --> seen by a camera --> draw_streets (streets), labels as KITTI's
cells of rain that move, grow and decay --> write_rain (radar)
"""

from outsize.data.synthetic.radar import draw_rain, write_rain
from outsize.data.synthetic.scenes import CLASSES, draw_scene
from outsize.data.synthetic.streets import draw_street, draw_streets

__all__ = ["CLASSES", "draw_rain", "draw_scene", "draw_street", "draw_streets", "write_rain"]
