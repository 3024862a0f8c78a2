"""A landscape that is drawn: data for `outsize demo`.

fields, roads, water (layout) --> reflectances of each band (spectra) --> draw_scene (scenes)
"""

from outsize.data.synthetic.scenes import CLASSES, draw_scene

__all__ = ["CLASSES", "draw_scene"]
