"""A frame: one field of rain at one time, known before its numbers are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain
from outsize.raster.georef import GeoRef
from outsize.units import clock

_IN_NAME = re.compile(r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)[T_\-. ]?(\d\d)[:.\-]?(\d\d)(?:[:.\-]?(\d\d))?(?!\d)")


@dataclass(frozen=True)
class Frame:
    """A field of rain: its file, its place in that, its time and its grid; `read` gives mm/h, NaN where unknown."""

    path: Path
    number: int  # among the frames of its file
    time_s: int  # since 1970, when it was measured or its sum ended
    height: int
    width: int
    georef: GeoRef
    read: Callable[[], NDArray[np.float32]]

    @property
    def name(self) -> str:
        """Name it in a line."""
        return f"{self.path.name} at {clock(self.time_s)}"


def in_a_name(time_s: int) -> str:
    """Write a time so that it may be part of a file's name."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%dT%H%MZ")


def time_in_name(path: Path) -> int:
    """Return the time that a file is named by."""
    found = _IN_NAME.search(path.stem)
    if found is not None:
        try:
            year, month, day, hour, minute, second = (int(each or 0) for each in found.groups())
            return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
        except ValueError:
            pass
    need, remedy = "a time inside, or in the name as 20201031_0800", "rename the file"
    raise DataError(explain(f"{path} does not say when it was measured", path.name, need, remedy))


def untimed(path: Path) -> str | None:
    """Return a file's name without the time in it; None where there is none."""
    found = _IN_NAME.search(path.stem)
    return None if found is None else path.stem[: found.start()] + path.stem[found.end() :]
