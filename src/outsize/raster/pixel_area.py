"""Areas on the ellipsoid for any region of a map, from the area of its pixels as a smooth function of place.

Pixels of one map differ in size on Earth: slightly in a projected system, strongly in degrees. The size of a pixel
is fitted once as a polynomial of row and column. Its integral from the map's corner to a point is a polynomial too,
and a region's area is a sum of it over the region's corners: no point needs to be projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import chebyshev as cheb
from numpy.typing import NDArray

from outsize.errors import DataError, explain

if TYPE_CHECKING:
    from outsize.raster.georef import GeoRef

_DEGREES = (0, 2, 4, 8, 12)
_TOLERANCE = 1e-7  # relative error of a pixel's size at which no higher degree is tried
_CELL_PX = 8  # side of the cells that are measured: one pixel of some centimetres would drown in rounding
_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class PixelArea:
    """The integral of pixel area over rows and columns, as a polynomial of both scaled to [-1, 1]."""

    height: int
    width: int
    coefficients: NDArray[np.float64]  # [i, j] of u**i * v**j
    centre_m2: float

    def integral_m2(self, row: NDArray[Any], col: NDArray[Any]) -> NDArray[np.float64]:
        """Return at each point the area between the map's first corner and the point."""
        total = np.empty(len(row))
        for begin in range(0, len(row), _BATCH):
            part = slice(begin, begin + _BATCH)
            u, v = row[part] * (2.0 / self.height) - 1, col[part] * (2.0 / self.width) - 1
            outer = np.zeros(len(u))
            for line in self.coefficients[::-1]:
                inner = np.full(len(u), line[-1])
                for coefficient in line[-2::-1]:
                    inner *= v
                    inner += coefficient
                outer *= u
                outer += inner
            total[part] = outer
        return total


def measure_pixels(georef: GeoRef, height: int, width: int) -> PixelArea:
    """Fit the area of the pixels of a map that has a coordinate system."""
    num_nodes = 2 * _DEGREES[-1] + 1
    nodes = cheb.chebpts1(num_nodes)
    u, v = (axis.ravel() for axis in np.meshgrid(nodes, nodes, indexing="ij"))
    sizes_m2 = _cell_m2(georef, (u + 1) * height / 2, (v + 1) * width / 2) / _CELL_PX**2
    for degree in _DEGREES:
        terms = cheb.chebvander2d(u, v, [degree, degree])
        fitted = np.linalg.lstsq(terms, sizes_m2, rcond=None)[0]
        if np.abs(terms @ fitted - sizes_m2).max() <= _TOLERANCE * sizes_m2.max():
            break
    grid = fitted.reshape(degree + 1, degree + 1)
    integral = cheb.chebint(cheb.chebint(grid, lbnd=-1, axis=0), lbnd=-1, axis=1) * (height * width / 4)
    powers = np.apply_along_axis(_to_powers, 0, np.apply_along_axis(_to_powers, 1, integral))
    return PixelArea(height, width, powers, float(sizes_m2[num_nodes**2 // 2]))


def pixel_sides_m(georef: GeoRef, height: int, width: int) -> tuple[float, float] | None:
    """Return the sides of a map's middle pixel on Earth, downward and along a row; None where it has no place there."""
    if not georef.crs_wkt:
        return None
    import pyproj

    crs = pyproj.CRS.from_wkt(georef.crs_wkt)
    if crs.geodetic_crs is None or crs.ellipsoid is None:
        return None
    half = _CELL_PX / 2
    rows = height / 2 + np.array([-half, half, 0, 0])
    cols = width / 2 + np.array([0, 0, -half, half])
    to_degrees = pyproj.Transformer.from_crs(crs, crs.geodetic_crs, always_xy=True)
    lon, lat = to_degrees.transform(*georef.ground(rows, cols))
    if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
        return None
    globe = pyproj.Geod(a=crs.ellipsoid.semi_major_metre, b=crs.ellipsoid.semi_minor_metre)
    sides_m = globe.inv(lon[::2], lat[::2], lon[1::2], lat[1::2])[2] / _CELL_PX
    return float(sides_m[0]), float(sides_m[1])


def _to_powers(series: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = cheb.cheb2poly(series)
    return np.pad(powers, (0, len(series) - len(powers)))


def _cell_m2(georef: GeoRef, row: NDArray[np.float64], col: NDArray[np.float64]) -> NDArray[np.float64]:
    """Measure square cells around points on the ellipsoid."""
    import pyproj

    crs = pyproj.CRS.from_wkt(georef.crs_wkt or "")
    geodetic = crs.geodetic_crs
    if geodetic is None or crs.ellipsoid is None:
        raise _no_place(georef, "a coordinate system that is not on Earth")
    half = _CELL_PX / 2
    rows = row + np.array([[-half], [-half], [half], [half]])
    cols = col + np.array([[-half], [half], [half], [-half]])
    to_degrees = pyproj.Transformer.from_crs(crs, geodetic, always_xy=True)
    lon, lat = to_degrees.transform(*georef.ground(rows, cols))
    if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
        raise _no_place(georef, "pixels outside the reach of the projection")
    a, b = crs.ellipsoid.semi_major_metre, crs.ellipsoid.semi_minor_metre
    east = np.roll(lon, -1, axis=0) - lon
    east = np.radians(east - 360 * np.round(east / 360))  # across the date line too
    q = _authalic(np.sin(np.radians(lat)), float(np.sqrt(1 - (b / a) ** 2)))
    q -= q[:1].copy()  # what matters are differences in the ninth digit
    found: NDArray[np.float64] = np.abs(((q + np.roll(q, -1, axis=0)) / 2 * east).sum(axis=0)) * a**2 / 2
    return found


def _authalic(sine: NDArray[np.float64], e: float) -> NDArray[np.float64]:
    """Return q, whose change times the change of longitude times a^2 / 2 is area (Snyder 1987, formula 3-12)."""
    if e < 1e-9:
        return 2 * sine
    return (1 - e * e) * (sine / (1 - (e * sine) ** 2) + np.arctanh(e * sine) / e)


def _no_place(georef: GeoRef, found: str) -> DataError:
    name = (georef.crs_wkt or "").split('"')[1:2]
    return DataError(
        explain(
            f"areas cannot be measured in {name[0] if name else 'this coordinate system'}",
            found,
            "pixels that lie on the ellipsoid",
            "reproject the scene (gdalwarp) or leave the polygons out",
        )
    )
