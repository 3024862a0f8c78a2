"""Maps of whole scenes: classes, confidence, probabilities, polygons.

predict   scenes of a run, one after the other
scene     one scene: tiles -> working raster -> map, companions, polygons
fill      tiles -> working raster                  decoding  logits -> bytes to be written
unanswered   what is said of pixels without an answer
"""

from outsize.tasks.segment.maps.decoding import Wanted, decode
from outsize.tasks.segment.maps.predict import predict_one, predict_scenes, products_for
from outsize.tasks.segment.maps.unanswered import left_out_line

__all__ = ["Wanted", "decode", "left_out_line", "predict_one", "predict_scenes", "products_for"]
