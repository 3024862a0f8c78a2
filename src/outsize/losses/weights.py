"""Class weights from how often each class occurs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain
from outsize.losses.loss import Weights

LOG_OFFSET = 1.10  # no class weighs more than 1 / ln(1.10) = 10.5


def class_weights(
    kind: str, num_px: NDArray[np.integer[Any]], names: Sequence[str], *, log_offset: float = LOG_OFFSET
) -> Weights:
    """Return one weight for each class; `num_px` (image, class) counts the labelled pixels to train on.

    none      all alike
    median    median(f) / f, with f = pixels of the class / labelled pixels of the images in which it occurs
    log       1 / ln(c + p), with p = pixels of the class / all labelled pixels, and c the offset
    """
    if kind == "none":
        return None
    of_class = num_px.sum(0)
    empty = [name for name, num in zip(names, of_class, strict=True) if num == 0]
    if empty:
        remedy = "label some, take the class out, or set train.class_weights to none"
        raise DataError(
            explain(f"class {empty[0]!r} cannot be weighted", "no pixel to train on", "some", remedy)
        )
    if kind == "log":
        weights = 1.0 / np.log(log_offset + of_class / of_class.sum())
    else:
        frequencies = of_class / ((num_px > 0) * num_px.sum(1, keepdims=True)).sum(0)
        weights = np.median(frequencies) / frequencies
    return tuple(weights.tolist())
