"""What is known of a scene before its pixels are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from outsize.errors import DataError, explain
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.tiles.window import Window


@dataclass(frozen=True, slots=True)
class SceneInfo:
    """What is known of a scene before its pixels are read."""

    path: Path
    height: int
    width: int
    num_bands: int
    dtype: str
    nodata: float | None
    band_names: tuple[str, ...]
    block: tuple[int, int]
    georef: GeoRef
    driver: str = ""  # GDAL's name of the format; "" for pictures, which Pillow reads
    source: str = ""  # what GDAL opens; differs from the path only for allowed addresses
    band_indexes: tuple[int, ...] = ()  # from 1, in file order, without alpha
    alpha_index: int | None = None
    has_mask: bool = False
    is_compressed: bool = False  # a TIFF whose blocks are worth decoding once only
    shrink: int = 1  # of a picture: pixels a side that are read as one
    nearest: bool = False  # whether that one is the pixel in their middle, as of labels, and not their mean

    @property
    def window(self) -> Window:
        """The whole scene as a window."""
        return Window(0, 0, self.height, self.width)

    @property
    def num_px(self) -> int:
        """Pixels in the scene."""
        return self.height * self.width

    @property
    def always_valid(self) -> bool:
        """Whether nothing in the file can make a pixel invalid."""
        return self.nodata is None and self.alpha_index is None and not self.has_mask

    def shrunk(self, shrink: int, *, nearest: bool = False) -> SceneInfo:
        """Return a picture that is read at a part of its size."""
        if shrink == self.shrink:
            return self
        height, width = self.height // shrink, self.width // shrink
        if self.driver or not height * width:
            found = f"a {self.driver} file" if self.driver else f"{self.height} x {self.width} px"
            need, remedy = f"a PNG or JPEG picture of more than {shrink} px a side", "leave data.shrink out"
            raise DataError(explain(f"{self.path} cannot be read smaller", found, need, remedy))
        size, georef = (height, width), self.georef
        if georef != NO_PLACE:
            a, b, x, d, e, y = georef.transform
            georef = replace(georef, transform=(a * shrink, b * shrink, x, d * shrink, e * shrink, y))
        return replace(
            self, height=height, width=width, block=size, georef=georef, shrink=shrink, nearest=nearest
        )

    def largest_shift_px(self, grid: SceneInfo) -> float:
        """Return by how much its corners miss those of a raster of the same coordinate system, in pixels of that."""
        distances: list[float] = []
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            x, y = self.georef.ground(self.height * down, self.width * right)
            row, col = grid.georef.pixel(x, y)
            distances.append(max(abs(row - grid.height * down), abs(col - grid.width * right)))
        return max(distances)
