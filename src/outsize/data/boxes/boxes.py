"""The boxes of one picture as arrays, in the order of their file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

IGNORED = "DontCare"  # label of an area that is neither learnt nor scored
_ALPHA_UNKNOWN = -10.0  # as KITTI writes an angle that nobody measured
_DEFAULTS = {"scores": 1.0, "truncated": 0.0, "occluded": 0, "alphas": _ALPHA_UNKNOWN}


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes with their labels; what a format does not tell has the value of an object that is easily seen."""

    sides: NDArray[np.float64]  # box; left, top, right, bottom: far sides, so width = right - left
    labels: NDArray[np.str_]  # as the file has them
    scores: NDArray[np.float64]
    truncated: NDArray[np.float64]  # share of the object beyond the border of the picture
    occluded: NDArray[np.int64]  # 0 visible, 1 partly, 2 largely hidden, 3 unknown
    alphas: NDArray[np.float64]  # angle under which the object is seen, radians

    def __len__(self) -> int:
        """Count the boxes."""
        return len(self.sides)

    @property
    def have_angles(self) -> bool:
        """Whether the angle of every box is known."""
        return len(self) > 0 and not bool((self.alphas == _ALPHA_UNKNOWN).any())

    @property
    def heights_px(self) -> NDArray[np.float64]:
        """Height of each box."""
        return self.sides[:, 3] - self.sides[:, 1]

    @property
    def widths_px(self) -> NDArray[np.float64]:
        """Width of each box."""
        return self.sides[:, 2] - self.sides[:, 0]

    @property
    def areas_px(self) -> NDArray[np.float64]:
        """Area of each box."""
        return self.widths_px * self.heights_px

    def scaled(self, by_width: float, by_height: float) -> Boxes:
        """Return the boxes of the picture at another size."""
        return replace(self, sides=self.sides * np.array([by_width, by_height] * 2))

    def take(self, which: NDArray[Any]) -> Boxes:
        """Return some of the boxes, by number or by a mask."""
        return Boxes(**{each.name: getattr(self, each.name)[which] for each in fields(self)})


def gather(sides: Sequence[Sequence[float]] | NDArray[Any], labels: Sequence[str], **about: Any) -> Boxes:
    """Return boxes of their sides and labels, and of whatever else is known about each of them."""
    num = len(labels)
    known = {
        name: np.asarray(about.pop(name, np.full(num, value)), np.asarray(value).dtype)
        for name, value in _DEFAULTS.items()
    }
    if about:
        raise TypeError(f"boxes have no {', '.join(about)}")
    return Boxes(np.asarray(sides, np.float64).reshape(num, 4), np.asarray(labels, np.str_), **known)


def no_boxes() -> Boxes:
    """Return the boxes of a picture without any."""
    return gather(np.zeros((0, 4)), [])


def overlaps(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the common area of two rows of boxes (..., 4), one by one."""
    low = np.maximum(one[..., :2], other[..., :2])
    high = np.minimum(one[..., 2:], other[..., 2:])
    shared: NDArray[np.float64] = np.clip(high - low, 0, None).prod(-1)
    return shared
