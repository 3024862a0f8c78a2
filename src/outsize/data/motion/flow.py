"""How rain moves between frames: a field of motion by optical flow, from OpenCV or from pysteps.

    frames, oldest first --> motion of each of the last pairs --> their mean --> (2, row, column)
                                                                  pixels down and right in a step

What a single pair shows of a growing or dying cell is no motion: so the mean of three pairs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import Levels
from outsize.errors import JobError, explain

Motion = NDArray[np.float32]  # down and right, row, column; pixels in a step

_PAIRS = 3
_SPREAD = (
    16  # one in so many of the sides of a picture: how far the motion of a corner is spread, by a Gaussian
)
_FULL_LEVEL = 5300.0  # the level of 100 mm/h, which is white in what OpenCV is given
_CORNERS, _LEAST_CORNERS = 1000, 8


def find_motion(frames: Sequence[Levels], method: str = "dis") -> Motion:
    """Return the motion in the last of the frames by a method: dis, lucas-kanade, or pysteps."""
    if method not in METHODS:
        need = f"one of {', '.join(METHODS)}"
        raise JobError(
            explain("unknown method to find motion", repr(method), need, "correct data.frames.flow")
        )
    return METHODS[method](frames)


def _dis(frames: Sequence[Levels]) -> Motion:
    """Dense inverse search (Kroeger et al., 2016): every pixel of every pair."""
    cv2 = _opencv()
    search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grey = [_as_grey(frame) for frame in frames[-_PAIRS - 1 :]]
    pairs = pairwise(grey)
    across = np.mean([search.calc(before, after, None) for before, after in pairs], axis=0)
    motion: Motion = np.moveaxis(across[..., ::-1], 2, 0).astype(np.float32)
    return motion


def _lucas_kanade(frames: Sequence[Levels]) -> Motion:
    """Follow corners by Lucas and Kanade's method through the last pairs, and spread what they did over the picture."""
    cv2 = _opencv()
    grey = [_as_grey(frame) for frame in frames[-_PAIRS - 1 :]]
    places, moved = [np.zeros((0, 2), np.float32)], [np.zeros((0, 2), np.float32)]
    for before, after in pairwise(grey):
        corners = cv2.goodFeaturesToTrack(before, _CORNERS, 0.01, 5)
        if corners is None:
            continue
        found, is_found, _ = cv2.calcOpticalFlowPyrLK(
            before, after, corners, None, winSize=(51, 51), maxLevel=3
        )
        kept = is_found[:, 0] == 1
        places.append(corners[kept, 0])
        moved.append((found - corners)[kept, 0])
    return _spread(np.concatenate(places), np.concatenate(moved), grey[-1].shape)


def _spread(places: NDArray[np.float32], moved: NDArray[np.float32], shape: tuple[int, ...]) -> Motion:
    """Spread what single places did (right, down) over a picture, nearer ones counting more; outliers are dropped."""
    height, width = shape
    if len(places) < _LEAST_CORNERS:
        return np.zeros((2, height, width), np.float32)
    middle = np.median(moved, axis=0)
    apart = np.abs(moved - middle).max(1)
    kept = apart <= 3 * max(1.0, float(np.median(apart)))
    total, weight = np.zeros((2, height, width), np.float32), np.zeros((height, width), np.float32)
    cols, rows = np.rint(places[kept]).astype(int).T
    for axis, each in enumerate((moved[kept, 1], moved[kept, 0])):
        np.add.at(total[axis], (rows.clip(0, height - 1), cols.clip(0, width - 1)), each)
    np.add.at(weight, (rows.clip(0, height - 1), cols.clip(0, width - 1)), 1)
    near = _smoothed(np.concatenate((total, weight[None])))
    far = middle[::-1, None, None] * 1e-6  # where no corner is near, what most of them did
    spread: Motion = ((near[:2] + far) / (near[2] + 1e-6)).astype(np.float32)
    return spread


def _pysteps(frames: Sequence[Levels]) -> Motion:
    """Lucas and Kanade's method as pysteps has it, with its own removal of outliers."""
    try:
        with redirect_stdout(io.StringIO()):  # it prints where its settings are
            from pysteps import motion  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        need, remedy = "pysteps", 'pip install pysteps, or set data.frames.flow = "dis"'
        raise JobError(explain("motion by pysteps cannot be found", "not installed", need, remedy)) from error
    # logarithms of rain, as its decibels are; it takes no NaN
    shown = np.stack([_as_grey(frame) for frame in frames[-_PAIRS - 1 :]]).astype(np.float64)
    right, down = motion.get_method("LK")(shown)
    return np.stack((down, right)).astype(np.float32)


def _as_grey(levels: Levels) -> NDArray[np.uint8]:
    shown = np.clip(levels.astype(np.float32) * (255 / _FULL_LEVEL), 0, 255)
    return np.ascontiguousarray(shown.astype(np.uint8))


def _smoothed(fields: NDArray[np.float32]) -> NDArray[np.float32]:
    cv2, side = _opencv(), max(fields.shape[1:])
    blurred = [cv2.GaussianBlur(np.ascontiguousarray(each), (0, 0), side / _SPREAD) for each in fields]
    return np.stack(blurred).astype(np.float32)


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        need, remedy = (
            "opencv-python-headless",
            "pip install 'outsize[radar]', or set data.frames.flow = \"none\"",
        )
        raise JobError(explain("motion between frames cannot be found", "no OpenCV", need, remedy)) from error
    cv2.setNumThreads(1)  # samples are prepared side by side already
    return cv2


METHODS: dict[str, Callable[[Sequence[Levels]], Motion]] = {
    "dis": _dis,
    "lucas-kanade": _lucas_kanade,
    "pysteps": _pysteps,
}
