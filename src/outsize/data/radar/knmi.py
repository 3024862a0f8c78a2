"""Rain in HDF5 as the weather service of the Netherlands (KNMI) writes it: the first image of a file.

/overview     product_datetime_start, product_datetime_end              30-JUN-2012;23:55:00.000
/geographic   sizes of a pixel in km, offsets in pixels                 /map_projection: projection_proj4_params
/image1       image_geo_parameter (PRECIP_[MM])   /image_data           whole numbers
              /calibration: calibration_formulas (GEO=0.01*PV+0.0), calibration_missing_data, calibration_out_of_image
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.radar import hdf5
from outsize.data.radar.frames import Frame, time_in_name
from outsize.data.radar.units import to_mm_h
from outsize.errors import DataError, explain
from outsize.raster.georef import NO_PLACE, GeoRef

_FORMULA = re.compile(r"\s*GEO\s*=\s*([-+.\dEe]+)\s*\*\s*PV\s*\+\s*([-+.\dEe]+)\s*$", re.IGNORECASE)
_LEAST_EARTH = 1e5  # a radius below is in km
_PX_M = 1000.0  # pixels are in km


def is_knmi(file: Any) -> bool:
    """Say whether an open file is one of KNMI's."""
    return "image1/image_data" in file and "geographic" in file


def knmi_frames(path: Path, unit: str, step_s: int) -> list[Frame]:
    """Return the one frame of a file: the first of its images."""
    with hdf5.opened(path) as file:
        data = file["image1/image_data"]
        hdf5.refuse_elsewhere(path, data)
        height, width = (int(side) for side in data.shape)
        _calibration(path, file)
        named = re.search(r"\[(.+)\]", str(hdf5.attribute(file["image1"], "image_geo_parameter", "")))
        unit = unit or (named[1] if named else "")
        begin, end = (_time(file, f"product_datetime_{kind}") for kind in ("start", "end"))
        georef = _georef(file)
    summed_s = end - begin if begin and end and end > begin else step_s
    to_mm_h(path, unit, summed_s)  # refuses a unit that is not known
    time_s = end or time_in_name(path)
    return [Frame(path, 0, time_s, height, width, georef, partial(_read, path, unit, summed_s))]


def _read(path: Path, unit: str, summed_s: int) -> NDArray[np.float32]:
    with hdf5.opened(path) as file:
        raw = file["image1/image_data"][...]
        gain, offset, unknown = _calibration(path, file)
    rain = to_mm_h(path, unit, summed_s)(hdf5.unpacked(raw, gain, offset))
    return np.where(np.isin(raw, unknown), np.float32(np.nan), rain)


def _calibration(path: Path, file: Any) -> tuple[float, float, list[float]]:
    """Return what a count stands for, where counting begins, and the counts that stand for nothing known."""
    told = file["image1/calibration"]
    formula = str(hdf5.attribute(told, "calibration_formulas", ""))
    found = _FORMULA.match(formula)
    if found is None:
        need, remedy = "GEO=gain*PV+offset", "convert it to a GeoTIFF"
        raise DataError(explain(f"what {path} counts is not known", repr(formula), need, remedy))
    both = (hdf5.attribute(told, f"calibration_{kind}") for kind in ("missing_data", "out_of_image"))
    return float(found[1]), float(found[2]), [float(each) for each in both if each is not None]


def _time(file: Any, name: str) -> int | None:
    text = str(hdf5.attribute(file["overview"], name, "")) if "overview" in file else ""
    try:
        told = datetime.strptime(text.partition(".")[0], "%d-%b-%Y;%H:%M:%S")
    except ValueError:
        return None
    return int(told.replace(tzinfo=UTC).timestamp())


def _georef(file: Any) -> GeoRef:
    where, mapping = file["geographic"], file.get("geographic/map_projection")
    names = ("geo_pixel_size_x", "geo_pixel_size_y", "geo_column_offset", "geo_row_offset")
    told = [hdf5.attribute(where, name) for name in names]
    if mapping is None or any(each is None for each in told):
        return NO_PLACE
    crs_wkt = _crs(str(hdf5.attribute(mapping, "projection_proj4_params", "")))
    across, down, left, top = (float(each) for each in told)
    place = (across * _PX_M, 0.0, left * across * _PX_M, 0.0, down * _PX_M, top * down * _PX_M)
    return GeoRef(crs_wkt, place) if crs_wkt else NO_PLACE


@lru_cache(maxsize=16)  # all frames have one
def _crs(told: str) -> str:
    """Return a coordinate system in metres for one in km; "" for one that is not understood."""
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    parts = dict(each.lstrip("+").partition("=")[::2] for each in told.split())
    parts.pop("units", None)
    try:
        for name in ("a", "b"):
            if name in parts and float(parts[name]) < _LEAST_EARTH:
                parts[name] = f"{float(parts[name]) * 1000:.10g}"
        return str(
            CRS.from_user_input(" ".join(f"+{name}={value}" for name, value in parts.items())).to_wkt()
        )
    except (CRSError, ValueError):
        return ""
