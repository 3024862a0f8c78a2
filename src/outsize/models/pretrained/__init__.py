"""Networks that begin with the weights of others: fetched or from a file, fitted by name, widened to other bands.

fetch, or a file -> fit: what has the same name and shape -> widen: first layer by bands, head by classes
smp: any network of segmentation-models-pytorch      detectors: what finds objects
"""

from outsize.models.pretrained.detectors import start_detector
from outsize.models.pretrained.fit import Fitted, Remake, fit_weights
from outsize.models.pretrained.smp import build_smp
from outsize.models.pretrained.widen import find_ends, match_bands, take

__all__ = [
    "Fitted",
    "Remake",
    "build_smp",
    "find_ends",
    "fit_weights",
    "match_bands",
    "start_detector",
    "take",
]
