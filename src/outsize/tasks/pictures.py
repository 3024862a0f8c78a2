"""What pictures of any task are drawn from: the bands of a scene as colours that can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
GAP_PX = 8  # white between the panels of a strip


def stretch(pixels: NDArray[Any], valid: NDArray[np.bool_], band_names: Sequence[str]) -> NDArray[np.float32]:
    """Turn bands (band, row, column) into a picture: red, green, blue by name or the first ones, 2 to 98 %.

    Bytes are shown as they are: stretched, a calm sea would look like its compression.
    """
    chosen = _visible(band_names, pixels.shape[0])
    picture = np.ones((*valid.shape, 3), np.float32)
    for channel, band in enumerate(chosen):
        values = pixels[band].astype(np.float32)
        if pixels.dtype == np.uint8:
            values /= 255
        elif valid.any():
            low, high = np.percentile(values[valid], (2, 98))
            values = np.clip((values - low) / max(high - low, 1e-6), 0, 1)
        picture[..., channel] = np.where(valid, values, 1.0)
    return picture


def _visible(band_names: Sequence[str], num_bands: int) -> tuple[int, int, int]:
    names = [name.lower() for name in band_names]
    if all(colour in names for colour in ("red", "green", "blue")):
        return names.index("red"), names.index("green"), names.index("blue")
    return (0, 1, 2) if num_bands >= 3 else (0, 0, 0)
