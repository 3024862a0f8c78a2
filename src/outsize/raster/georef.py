"""Where pixels lie on Earth: the grid of a scene, and pixels that carry it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.tiles.window import Window

Transform = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class GeoRef:
    """A coordinate system and the affine map from pixels to it, in the order a, b, c, d, e, f.

    x = a * col + b * row + c        (col, row) = (0, 0) is the outer corner of the first pixel
    y = d * col + e * row + f
    """

    crs_wkt: str | None
    transform: Transform

    def ground(self, row: Any, col: Any) -> tuple[Any, Any]:
        """Return x and y of points given in rows and columns; numbers or arrays."""
        a, b, c, d, e, f = self.transform
        return a * col + b * row + c, d * col + e * row + f

    def pixel(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return row and column of points on the ground; numbers or arrays."""
        a, b, c, d, e, f = self.transform
        size = a * e - b * d
        return (a * (y - f) - d * (x - c)) / size, (e * (x - c) - b * (y - f)) / size

    @property
    def resolution(self) -> tuple[float, float]:
        """Ground units per pixel, along rows downward and along columns."""
        a, b, _, d, e, _ = self.transform
        return math.hypot(b, e), math.hypot(a, d)

    def shifted(self, window: Window) -> GeoRef:
        """Return the grid of the pixels inside `window`, whose corner becomes row 0, column 0."""
        a, b, _, d, e, _ = self.transform
        x, y = self.ground(window.row, window.col)
        return GeoRef(self.crs_wkt, (a, b, x, d, e, y))


NO_PLACE = GeoRef(None, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))
"""The grid of a picture that does not say where it was taken: x is the column, y the row."""


@dataclass(frozen=True, slots=True)
class Raster:
    """Pixels (bands, rows, columns), which of them hold a measurement (rows, columns), and their place."""

    pixels: NDArray[Any]
    valid: NDArray[np.bool_]
    georef: GeoRef


def same_crs(first_wkt: str | None, second_wkt: str | None) -> bool:
    """Say whether two coordinate systems are one."""
    from rasterio.crs import CRS

    if first_wkt == second_wkt or first_wkt is None or second_wkt is None:
        return first_wkt == second_wkt
    return bool(CRS.from_wkt(first_wkt) == CRS.from_wkt(second_wkt))
