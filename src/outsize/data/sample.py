"""One sample of a training: a window of a scene, or a picture, and what is learnt of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from outsize.data.targets import Target

IGNORE = 255  # class index of what is neither learnt nor scored


@dataclass(frozen=True)
class Sample:
    """Raw pixels, which of them are valid, and what is learnt of them."""

    image: NDArray[Any]  # bands, height, width; dtype of the file
    valid: NDArray[np.bool_]  # height, width
    target: Target
