"""Rain in GeoTIFF: a frame in each file, or in each band of one; times are in the bands' names, tags, or the file's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.radar.frames import Frame, time_in_name
from outsize.data.radar.units import to_mm_h
from outsize.errors import DataError, explain
from outsize.raster.gdal import open_raster
from outsize.raster.reading import describe
from outsize.units import seconds_of


def geotiff_frames(path: Path, unit: str, step_s: int) -> list[Frame]:
    """Return the frames of a file: one for each of its bands."""
    info = describe(path)
    with open_raster(info.source) as opened:
        names = [name or "" for name in opened.descriptions]
        units = [unit or each or "mm/h" for each in opened.units]
        tagged = opened.tags().get("TIFFTAG_DATETIME") or opened.tags().get("time", "")
    times_s = [_time(name) for name in names]
    if info.num_bands == 1 and times_s[0] is None:
        told = _time(tagged.replace(":", "-", 2) if tagged[4:5] == ":" else tagged)
        times_s = [told if told is not None else time_in_name(path)]
    if any(each is None for each in times_s):
        bad = next(name for name, each in zip(names, times_s, strict=True) if each is None)
        need, remedy = (
            "bands named by their times, as 2020-10-31T08:00",
            "name them, or write one file for each",
        )
        raise DataError(explain(f"{path} does not say when its bands were measured", repr(bad), need, remedy))
    to_mm_h(path, units[0], step_s)
    return [
        Frame(
            path,
            number,
            time_s,
            info.height,
            info.width,
            info.georef,
            partial(_read, path, number, units[number], step_s),
        )
        for number, time_s in enumerate(times_s)
        if time_s is not None
    ]


def _read(path: Path, number: int, unit: str, summed_s: int) -> NDArray[np.float32]:
    from rasterio.errors import RasterioError

    with open_raster(str(path.absolute())) as opened:
        try:
            raw = opened.read(number + 1)
            is_known = opened.read_masks(number + 1) > 0
        except RasterioError as error:
            need, remedy = "complete, undamaged pixels", "copy the file again from its source"
            raise DataError(
                explain(f"{path} cannot be read", error.__cause__ or error, need, remedy)
            ) from error
        gain, offset = opened.scales[number], opened.offsets[number]
    values = (raw.astype(np.float64) * gain + offset).astype(np.float32)
    is_known &= np.isfinite(values)
    return np.where(is_known, to_mm_h(path, unit, summed_s)(values), np.float32(np.nan))


def _time(text: str) -> int | None:
    try:
        return seconds_of(text.partition(" (")[0])
    except ValueError:
        return None
