"""Rain in HDF5 by OPERA's data information model (ODIM): composites and other grids, not polar volumes.

/what      date, time, object           /where           projdef, xscale, yscale, UL_lon, UL_lat
/dataset1  /data1   /data               whole numbers
                    /what               quantity, gain, offset, nodata (not measured), undetect (no rain)
"""

from __future__ import annotations

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

_UNITS = {"DBZH": "dBZ", "TH": "dBZ", "DBZ": "dBZ", "RATE": "mm/h", "ACRR": "mm"}


def is_odim(file: Any) -> bool:
    """Say whether an open file is one of ODIM's."""
    return "dataset1" in file and "what" in file


def odim_frames(path: Path, unit: str, step_s: int) -> list[Frame]:
    """Return the one frame of a file: the first of its datasets."""
    with hdf5.opened(path) as file:
        if str(hdf5.attribute(file["what"], "object", "")) in ("PVOL", "SCAN"):
            need, remedy = "a grid: a composite or a product", "bring it to a grid first"
            raise DataError(explain(f"{path} holds beams", "a polar volume", need, remedy))
        data = file["dataset1/data1/data"]
        hdf5.refuse_elsewhere(path, data)
        height, width = (int(side) for side in data.shape)
        said = _said(file, "quantity", "")
        unit = unit or _UNITS.get(str(said), str(said))
        begin, end = (_time(_wheres(file, kind)) for kind in ("start", "end"))
        time_s = end or _time((file["what"], "date", "time")) or time_in_name(path)
        summed_s = end - begin if begin and end and end > begin else step_s
        georef = _georef(file)
    to_mm_h(path, unit, summed_s)
    return [Frame(path, 0, time_s, height, width, georef, partial(_read, path, unit, summed_s))]


def _read(path: Path, unit: str, summed_s: int) -> NDArray[np.float32]:
    with hdf5.opened(path) as file:
        raw = file["dataset1/data1/data"][...]
        gain, offset = float(_said(file, "gain", 1.0)), float(_said(file, "offset", 0.0))
        nodata, undetect = _said(file, "nodata", None), _said(file, "undetect", None)
    rain = to_mm_h(path, unit, summed_s)(hdf5.unpacked(raw, gain, offset))
    if undetect is not None:
        rain = np.where(raw == undetect, np.float32(0), rain)
    return rain if nodata is None else np.where(raw == nodata, np.float32(np.nan), rain)


def _said(file: Any, name: str, default: Any) -> Any:
    """Return what is said of the data: by itself, by its dataset, or by the file."""
    for place in ("dataset1/data1/what", "dataset1/what", "what"):
        if place in file and name in file[place].attrs:
            return hdf5.attribute(file[place], name)
    return default


def _wheres(file: Any, kind: str) -> tuple[Any, str, str]:
    return file.get("dataset1/what"), f"{kind}date", f"{kind}time"


def _time(told: tuple[Any, str, str]) -> int | None:
    group, date, time = told
    if group is None or date not in group.attrs or time not in group.attrs:
        return None
    text = f"{hdf5.attribute(group, date)}{hdf5.attribute(group, time)}"
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _georef(file: Any) -> GeoRef:
    where = file.get("where")
    wanted = ("projdef", "xscale", "yscale", "UL_lon", "UL_lat")
    if where is None or any(name not in where.attrs for name in wanted):
        return NO_PLACE
    projdef, across, down, longitude, latitude = (hdf5.attribute(where, name) for name in wanted)
    crs_wkt, x, y = _corner(str(projdef), float(longitude), float(latitude))
    return GeoRef(crs_wkt, (float(across), 0.0, x, 0.0, -float(down), y)) if crs_wkt else NO_PLACE


@lru_cache(maxsize=16)  # all frames have one
def _corner(projdef: str, longitude: float, latitude: float) -> tuple[str, float, float]:
    """Return a coordinate system and where its upper left corner is; "" for one that is not understood."""
    from pyproj import CRS, Transformer
    from pyproj.exceptions import ProjError

    try:
        crs = CRS.from_user_input(projdef)
        x, y = Transformer.from_crs(4326, crs, always_xy=True).transform(longitude, latitude)
    except ProjError:
        return "", 0.0, 0.0
    return str(crs.to_wkt()), float(x), float(y)
