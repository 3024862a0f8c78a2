"""How a prediction fits: cores with their halo, or passes where the model looks at the whole picture.

Facts, scene --> choose: cores (which are tried) --> Plan with its Tiling and batch
                         passes (exact, tile by tile and several times) --> Plan with its Passes
"""

from outsize.plan.predict.choose import choose_predict, refuse_limits, seconds_of_windows
from outsize.plan.predict.cores import cores_to_show, largest_core
from outsize.plan.predict.passes import cores_of

__all__ = [
    "choose_predict",
    "cores_of",
    "cores_to_show",
    "largest_core",
    "refuse_limits",
    "seconds_of_windows",
]
