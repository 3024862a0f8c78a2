"""Rain in netCDF-4 by the conventions of CF: scale, offset, fill and times are attributes of its variables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.radar import hdf5
from outsize.data.radar.frames import Frame, time_in_name
from outsize.data.radar.units import to_mm_h
from outsize.errors import DataError, explain, listed
from outsize.raster.georef import NO_PLACE, GeoRef

_RAIN = re.compile(r"rain|precip|prcp|rr\b|acrr|reflectiv|dbz", re.IGNORECASE)
_SINCE = re.compile(r"\s*(second|minute|hour|day)s?\s+since\s+(.+?)\s*(?:UTC|Z)?\s*$", re.IGNORECASE)
_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_METRES = {"km": 1000.0, "m": 1.0, "metre": 1.0, "metres": 1.0, "meter": 1.0}


def netcdf_frames(path: Path, variable: str, unit: str, step_s: int) -> list[Frame]:
    """Return the frames of a file, in its order; those of its `variable`, or of the only one that is rain."""
    with hdf5.opened(path) as file:
        held = hdf5.datasets(file)
        name = variable or _only_rain(path, held)
        if name not in held or len(held[name].shape) not in (2, 3):
            fields = [key for key, each in held.items() if len(each.shape) in (2, 3)]
            need, remedy = f"one of {listed(fields, 6) or 'none'}", "correct data.frames.variable"
            raise DataError(explain(f"{path} has no such field", repr(name), need, remedy))
        rain = held[name]
        hdf5.refuse_elsewhere(path, rain)
        times_s, summed_s = _times(path, held, step_s)
        height, width = (int(side) for side in rain.shape[-2:])
        num = 1 if rain.ndim == 2 else int(rain.shape[0])
        times_s = times_s or ([time_in_name(path)] if num == 1 else [])
        if len(times_s) != num:
            need, remedy = f"{num} times", "give it a variable of standard_name time"
            raise DataError(
                explain(f"{path} does not say when it was measured", f"{len(times_s)}", need, remedy)
            )
        georef, is_upside_down = _georef(held, rain, height, width)
        unit = unit or str(hdf5.attribute(rain, "units", ""))
    to_mm_h(path, unit, summed_s)  # refuses a unit that is not known
    read = partial(_read, path, name, unit, summed_s, is_upside_down)
    return [
        Frame(path, number, time_s, height, width, georef, partial(read, number if num > 1 else None))
        for number, time_s in enumerate(times_s)
    ]


def _read(
    path: Path, name: str, unit: str, summed_s: int, is_upside_down: bool, number: int | None
) -> NDArray[np.float32]:
    with hdf5.opened(path) as file:
        field = file[name]
        raw: NDArray[Any] = field[...] if field.ndim == 2 else field[number or 0]
        gain, offset = (float(hdf5.attribute(field, key, value)) for key, value in _PACKED)
        is_known = np.ones(raw.shape, np.bool_)
        for key in ("_FillValue", "missing_value"):
            for fill in np.atleast_1d(hdf5.attribute(field, key, [])):
                is_known &= ~np.isnan(raw) if np.isnan(fill) else raw != fill
        low, high = _valid_range(field)
        is_known &= (raw >= low) & (raw <= high)
    values = to_mm_h(path, unit, summed_s)(hdf5.unpacked(raw, gain, offset))
    rain = np.where(is_known, values, np.float32(np.nan))
    return np.ascontiguousarray(rain[::-1] if is_upside_down else rain)


_PACKED = (("scale_factor", 1.0), ("add_offset", 0.0))


def _valid_range(field: Any) -> tuple[float, float]:
    both = hdf5.attribute(field, "valid_range", (-np.inf, np.inf))
    return float(hdf5.attribute(field, "valid_min", both[0])), float(
        hdf5.attribute(field, "valid_max", both[1])
    )


def _only_rain(path: Path, held: dict[str, Any]) -> str:
    """Return the name of the one field of rain in a file."""
    fields = {
        name: each
        for name, each in held.items()
        if len(each.shape) in (2, 3)
        and np.issubdtype(each.dtype, np.number)
        and min(each.shape[-2:]) > 2
        and not name.lower().startswith(("lat", "lon"))
    }
    if len(fields) > 1:
        said = {name: f"{name} {hdf5.attribute(each, 'standard_name', '')}" for name, each in fields.items()}
        fields = {name: each for name, each in fields.items() if _RAIN.search(said[name])} or fields
    if len(fields) != 1:
        what = listed(list(fields), 6) or "no field at all"
        need, remedy = "one field of rain", "name it in data.frames.variable"
        raise DataError(explain(f"what of {path} is rain is not clear", what, need, remedy))
    return next(iter(fields))


def _times(path: Path, held: dict[str, Any], step_s: int) -> tuple[list[int], int]:
    """Return the times of all frames, and the seconds over which sums are taken: from the start that is told."""
    found = _of_standard(held, "time") or held.get("time") or held.get("valid_time")
    if found is None:
        return [], step_s
    times_s = _seconds(path, found)
    start = held.get("start_time")
    summed_s = times_s[0] - _seconds(path, start)[0] if start is not None and times_s else step_s
    return times_s, summed_s if summed_s > 0 else step_s


def _seconds(path: Path, variable: Any) -> list[int]:
    unit = _SINCE.match(str(hdf5.attribute(variable, "units", "")))
    if unit is None:
        found = str(hdf5.attribute(variable, "units", "no units"))
        need, remedy = "seconds, minutes, hours or days since a time", "correct its units"
        raise DataError(explain(f"times of {path} cannot be read", found, need, remedy))
    try:
        since = datetime.fromisoformat(unit[2])
    except ValueError as error:
        need, remedy = "a time as 1970-01-01 00:00:00", "correct its units"
        raise DataError(explain(f"times of {path} cannot be read", unit[2], need, remedy)) from error
    first_s = (since if since.tzinfo else since.replace(tzinfo=UTC)).timestamp()
    values = np.atleast_1d(variable[...]).astype(np.float64) * _UNIT_S[unit[1].lower()]
    return [round(first_s + value) for value in values.tolist()]


def _of_standard(held: dict[str, Any], name: str) -> Any:
    return next((each for each in held.values() if hdf5.attribute(each, "standard_name") == name), None)


def _georef(held: dict[str, Any], rain: Any, height: int, width: int) -> tuple[GeoRef, bool]:
    """Return where the field lies, and whether its first row is in the south."""
    across = _axis(held, ("projection_x_coordinate", "longitude"), ("x", "lon", "longitude"), width)
    down = _axis(held, ("projection_y_coordinate", "latitude"), ("y", "lat", "latitude"), height)
    if across is None or down is None:
        return NO_PLACE, False
    is_upside_down = bool(down[-1] > down[0])
    down = down[::-1] if is_upside_down else down
    step_x, step_y = (across[-1] - across[0]) / (width - 1), (down[-1] - down[0]) / (height - 1)
    transform = (step_x, 0.0, across[0] - step_x / 2, 0.0, step_y, down[0] - step_y / 2)
    return GeoRef(_crs(held, rain), tuple(float(each) for each in transform)), is_upside_down  # type: ignore[arg-type]


def _axis(
    held: dict[str, Any], standard: Sequence[str], names: Sequence[str], length: int
) -> NDArray[np.float64] | None:
    found = [_of_standard(held, each) for each in standard] + [held.get(name) for name in names]
    for each in found:
        if each is not None and each.shape == (length,) and length > 1:
            unit = str(hdf5.attribute(each, "units", "m")).lower()
            return np.asarray(each[...], np.float64) * _METRES.get(unit, 1.0)
    return None


def _crs(held: dict[str, Any], rain: Any) -> str | None:
    """Return the coordinate system that the grid mapping of CF tells; longitudes alone are those of WGS 84."""
    mapping = held.get(str(hdf5.attribute(rain, "grid_mapping", "")))
    if mapping is not None:
        known = {key: _plain(hdf5.attribute(mapping, key)) for key in mapping.attrs}
        return _crs_of_mapping(json.dumps(known, default=str))
    has_degrees = _of_standard(held, "longitude") is not None or "lon" in held or "longitude" in held
    return _degrees() if has_degrees else None


@lru_cache(maxsize=16)  # all frames have one, and to make it takes longer than to read a frame
def _crs_of_mapping(known: str) -> str | None:
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return str(CRS.from_cf(json.loads(known)).to_wkt())
    except (CRSError, KeyError, ValueError, TypeError):
        return None


@lru_cache(maxsize=1)
def _degrees() -> str:
    from pyproj import CRS

    return str(CRS.from_epsg(4326).to_wkt())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
