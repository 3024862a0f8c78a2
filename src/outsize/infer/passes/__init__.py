"""Runs a model on a picture in passes over its tiles; see the drawing in `tiles/passes`.

program     the model exported at the picture's size, its weights as they are now
scene       looked_at: all passes but the last over a scene, then its tiles in any order
run         pass by pass: read windows, run operations, keep parts of maps, add up pooled numbers
operations, resize, pools    one operation on a part of its maps; or what all parts say together
keep        the maps between two passes, in memory or in mapped files
trial       passes against the whole, on a picture that fits
"""

from outsize.infer.passes.keep import Keep
from outsize.infer.passes.program import Program
from outsize.infer.passes.run import PassRun
from outsize.infer.passes.scene import streaming, work_of_scene
from outsize.infer.passes.trial import compare, equal_to, pass_graph

__all__ = ["Keep", "PassRun", "Program", "compare", "equal_to", "pass_graph", "streaming", "work_of_scene"]
