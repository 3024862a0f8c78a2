"""One sample of a training: a window of a scene and its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.objects.object import Object

IGNORE = 255  # class index of pixels that are neither learnt nor scored


@dataclass(frozen=True)
class Sample:
    """One window: raw pixels, which of them are valid, and a class index for each (IGNORE where unknown)."""

    image: NDArray[Any]  # bands, height, width; dtype of the file
    valid: NDArray[np.bool_]  # height, width
    labels: NDArray[np.uint8]  # height, width
    objects: tuple[Object, ...] = ()  # where the labels are objects; `labels` is then IGNORE around them
