"""Raw pixels to what a network is given, the same for training and prediction.

bands --> normalise ----------------------------------.
  '-> MapMaker: canny, on a scale of 0 to 255 (edges) +--> with_maps
labels --> class_edges: where classes meet -----------'
"""

from outsize.data.inputs.edges import EDGES, MapMaker, class_edges, gains_to_bytes, map_maker, reach_px
from outsize.data.inputs.normalised import normalise, with_maps

__all__ = [
    "EDGES",
    "MapMaker",
    "class_edges",
    "gains_to_bytes",
    "map_maker",
    "normalise",
    "reach_px",
    "with_maps",
]
