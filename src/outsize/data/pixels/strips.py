"""Changes of an image's pixels as float32, strip by strip: what lies between two steps stays in a core's cache.

Pixels are those of `colours.recolour` and `colours.blur`. A process alone gains little. But to go two dozen times over
8 MB for each picture would, at 370 pictures a second, ask 130 GB/s of a memory that all processes share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from outsize.data.pixels.colours import Recolouring, blur_along, gaussian, mixing

_STRIP_PX = 2**16  # smaller, and calling torch costs as much as what it does


def recolour_pixels(image: NDArray[Any], drawn: Recolouring) -> NDArray[Any]:
    """Change the colours of a picture of any numbers; whole ones are rounded and cut off to what they can hold."""
    floats = torch.from_numpy(image.astype(np.float32, copy=False))
    matrix, offset = mixing(floats.mean((-2, -1)), drawn)
    made = np.empty(image.shape, image.dtype)
    for rows in _strips(image):
        strip = floats[:, rows]
        _put(made[:, rows], torch.addmm(offset[:, None], matrix, strip.flatten(1)).view(strip.shape))
    return made


def blur_pixels(image: NDArray[Any], sigma_px: float) -> NDArray[Any]:
    """Blur an image of any numbers; whole ones are rounded and cut off to what they can hold."""
    taps = gaussian(sigma_px)
    if np.issubdtype(image.dtype, np.integer) and _changes_nothing(taps, image.dtype):
        return image
    num_bands, height, width = image.shape
    reach = len(taps) // 2
    along_rows = torch.empty(num_bands, height + 2 * reach, width)
    inner = along_rows[:, reach : reach + height]
    for rows in _strips(image):
        blur_along(_with_ends(image[:, rows], reach), taps, -1, out=inner[:, rows])
    along_rows[:, :reach] = inner[:, :1]
    along_rows[:, reach + height :] = inner[:, -1:]
    blurred = _blur_across(along_rows, taps)
    made = np.empty(image.shape, image.dtype)
    for rows in _strips(image):
        _put(made[:, rows], blurred[:, rows])
    return made


def _blur_across(image: Tensor, taps: list[float]) -> Tensor:
    """Blur along columns: a convolution in which a column of pixels is a channel, so that it has 16 at a time.

    It adds in the order of `blur_along`, but nothing is written between two taps: a third of the time.
    """
    width = image.shape[2]
    columns = image.permute(0, 2, 1)[:, :, None].contiguous(
        memory_format=torch.channels_last
    )  # as it lies there
    weights = image.new_tensor(taps).expand(width, 1, 1, len(taps))
    return functional.conv2d(columns, weights, groups=width)[:, :, 0].permute(0, 2, 1)


def _changes_nothing(taps: list[float], dtype: np.dtype[Any]) -> bool:
    """Say whether a blur is so weak that every whole number would be rounded to what it was."""
    about, middle = np.iinfo(dtype), taps[len(taps) // 2]
    return (1 - middle**2) * (int(about.max) - int(about.min)) < 0.49  # 0.5 but for float32's errors


def _strips(image: NDArray[Any]) -> Iterator[slice]:
    height, width = image.shape[1:]
    num_rows = max(1, _STRIP_PX // width)
    for row in range(0, height, num_rows):
        yield slice(row, min(height, row + num_rows))


def _with_ends(rows: NDArray[Any], reach: int) -> Tensor:
    """Return rows of pixels as float32; beyond its edges an image goes on as it ends."""
    num_bands, height, width = rows.shape
    longer = np.empty((num_bands, height, width + 2 * reach), np.float32)
    longer[..., reach : reach + width] = rows
    longer[..., :reach] = rows[..., :1]
    longer[..., reach + width :] = rows[..., -1:]
    return torch.from_numpy(longer)


def _put(place: NDArray[Any], made: Tensor) -> None:
    """Write float pixels over others; `made` is changed."""
    if np.issubdtype(place.dtype, np.integer):
        about = np.iinfo(place.dtype)
        made = made.round_().clamp_(about.min, about.max)
    np.copyto(place, made.numpy(), casting="unsafe")
