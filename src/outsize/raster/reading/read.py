"""Reads windows of a scene: checked pixels, which of them are valid, and their place."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain, one_line
from outsize.raster.gdal import open_raster
from outsize.raster.georef import Raster
from outsize.raster.reading.info import SceneInfo
from outsize.raster.reading.picture import Picture
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from rasterio.io import DatasetReader


class SceneReader:
    """Reads windows of one scene from any number of threads; close it, or use it in a `with` block.

    A pixel is valid when all that the file says agrees: its mask, its alpha band (above 0), its nodata value.
    For nodata, which of the bands must have that value depends on whether a measurement can have it too:

        8-bit scenes, nodata 0    all bands    0 and 255 are shadow and glare too: a red roof has blue = 0
        other nodata, NaN         any band     -9999 is no measurement: one such band spoils the pixel

    Where a pixel is invalid, and outside the scene, every band reads 0.
    """

    def __init__(self, info: SceneInfo, decode: Callable[[SceneInfo], NDArray[Any]] | None = None) -> None:
        """`decode` gives a picture as a whole, decoded: None decodes it here."""
        self.info = info
        self._decode = decode or decode_picture
        self._local = threading.local()
        self._lock = threading.Lock()
        self._handles: list[DatasetReader] = []
        self._shared: DatasetReader | None = None
        self._shared_lock = threading.Lock()
        self._picture: NDArray[Any] | None = None
        self._is_picture = not info.band_indexes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the handles of all threads; none of them may be reading."""
        with self._lock:
            for handle in self._handles:
                handle.close()
            self._handles.clear()
            if self._shared is not None:
                self._shared.close()
            self._shared = None
            self._local = threading.local()
            self._picture = None

    def read(self, window: Window) -> Raster:
        """Read a window into new arrays."""
        pixels = np.empty((self.info.num_bands, window.height, window.width), self.info.dtype)
        valid = np.empty((window.height, window.width), np.bool_)
        self.read_into(window, pixels, valid)
        return Raster(pixels, valid, self.info.georef.shifted(window))

    def read_into(self, window: Window, pixels: NDArray[Any], valid: NDArray[np.bool_]) -> None:
        """Fill `pixels` (bands, rows, columns) and `valid` (rows, columns) with a window.

        The window may reach over any edge of the scene. `pixels` may also be float32 for an integer scene.
        """
        info, shape = self.info, (self.info.num_bands, window.height, window.width)
        if pixels.shape != shape or valid.shape != shape[1:] or pixels.dtype not in (info.dtype, "float32"):
            raise ValueError(f"arrays {pixels.shape} {pixels.dtype}, {valid.shape} do not fit {shape}")
        inside = window.intersect(info.window)
        if inside != window:
            pixels[...] = 0
            valid[...] = False
        if inside.num_px == 0:
            return
        rows, cols = inside.within(window).slices
        part, part_valid = pixels[:, rows, cols], valid[rows, cols]
        if self._is_picture:
            self._copy_picture(inside, part, part_valid)
        else:
            self._read_raster(inside, part, part_valid)
        if info.nodata is not None:
            part_valid &= _holds_data(part, info)
        if not info.always_valid and not part_valid.all():
            np.copyto(part, 0, where=~part_valid)
        if info.dtype == "float32":
            _refuse_not_finite(part, info, inside)

    def _read_raster(self, inside: Window, part: NDArray[Any], part_valid: NDArray[np.bool_]) -> None:
        from rasterio import windows
        from rasterio.errors import RasterioError

        info = self.info
        place = windows.Window(inside.col, inside.row, inside.width, inside.height)
        try:
            with self._handle() as handle:
                handle.read(list(info.band_indexes), window=place, out=part)
                part_valid[...] = True
                if info.alpha_index is not None:
                    part_valid &= handle.read(info.alpha_index, window=place) > 0
                if info.has_mask:
                    part_valid &= handle.read_masks(info.band_indexes[0], window=place) > 0
        except RasterioError as error:
            raise DataError(
                explain(
                    f"{info.path} cannot be read at rows {inside.row}-{inside.row_end}, "
                    f"columns {inside.col}-{inside.col_end}",
                    one_line(error.__cause__ or error),
                    "complete, undamaged pixels",
                    "copy the file again from its source",
                )
            ) from error

    @contextmanager
    def _handle(self) -> Iterator[DatasetReader]:
        """Lend a handle: the thread's own, or for a compressed TIFF the common one.

        Halos overlap, so neighbouring windows need the same blocks. Handles do not share decoded blocks: four
        threads with their own would decode most blocks four times. One handle decodes each once, on all cores.
        """
        drivers = (self.info.driver,)
        if self.info.is_compressed:
            with self._shared_lock:
                if self._shared is None:
                    self._shared = open_raster(self.info.source, drivers, num_threads="ALL_CPUS")
                yield self._shared
            return
        handle: DatasetReader | None = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._local.handle = open_raster(self.info.source, drivers)
            with self._lock:
                self._handles.append(handle)
        yield handle

    def _copy_picture(self, inside: Window, part: NDArray[Any], part_valid: NDArray[np.bool_]) -> None:
        with self._lock:
            if self._picture is None:
                self._picture = self._decode(self.info)
            whole = self._picture
        rows, cols = inside.slices
        part[...] = whole[: self.info.num_bands, rows, cols]
        part_valid[...] = True if self.info.alpha_index is None else whole[-1, rows, cols] > 0


def decode_picture(info: SceneInfo) -> NDArray[Any]:
    """Decode a picture (bands, rows, columns)."""
    with Picture(info.path) as opened:
        return opened.decode(info.shrink, nearest=info.nearest)


def _holds_data(part: NDArray[Any], info: SceneInfo) -> NDArray[np.bool_]:
    """Say which pixels are no nodata; band by band, for an array of all comparisons would cost as much as reading."""
    nodata = info.nodata
    assert nodata is not None
    every_band_must_be_nodata = nodata == 0 or info.dtype == "uint8"
    holds: NDArray[np.bool_] | None = None
    for band in part:
        here = ~np.isnan(band) if math.isnan(nodata) else band != band.dtype.type(nodata)
        if holds is None:
            holds = here
        elif every_band_must_be_nodata:
            holds |= here
        else:
            holds &= here
    assert holds is not None
    return holds


def _refuse_not_finite(part: NDArray[Any], info: SceneInfo, inside: Window) -> None:
    # A sum needs no memory of its own and is finite unless something in it is not.
    with np.errstate(invalid="ignore", over="ignore"):
        if math.isfinite(float(part.sum(dtype=np.float64))):
            return
    num_nan, num_inf = int(np.isnan(part).sum()), int(np.isinf(part).sum())
    raise DataError(
        explain(
            f"{info.path} holds values that are no numbers at rows {inside.row}-{inside.row_end}, "
            f"columns {inside.col}-{inside.col_end}",
            f"{num_nan:,} NaN and {num_inf:,} infinite",
            "finite pixels, or nodata",
            "declare them as nodata (gdal_edit.py -a_nodata nan) or replace them",
        )
    )
