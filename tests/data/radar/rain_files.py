"""Frames of rain in small files, as services write them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

BEGAN_S = 1_600_000_200  # 2020-09-13T12:30Z
STEP_S = 600


def write_netcdf(
    path: Path,
    counts: NDArray[np.int16],
    time_s: int,
    *,
    up: bool = False,
    unit: str = "kg m-2",
    gain: float = 0.05,
) -> None:
    """Write a frame in counts of 0.05 kg/m2 in ten minutes, as the Bureau of Meteorology does; -1 is fill."""
    height, width = counts.shape
    with h5py.File(path, "w") as file:
        rain = file.create_dataset("precipitation", data=counts[::-1] if up else counts)
        rain.attrs["units"], rain.attrs["grid_mapping"] = np.bytes_(unit), np.bytes_(b"proj")
        rain.attrs["scale_factor"], rain.attrs["add_offset"] = np.array([gain]), np.array([0.0])
        rain.attrs["_FillValue"] = np.array([-1], np.int16)
        for name, length in (("x", width), ("y", height)):
            values = np.arange(length, dtype=np.float64) - length / 2 + 0.5
            axis = file.create_dataset(name, data=values if name == "x" or up else values[::-1])
            axis.attrs["standard_name"] = np.bytes_(f"projection_{name}_coordinate".encode())
            axis.attrs["units"] = np.bytes_(b"km")
        for name, at_s in (("start_time", time_s - STEP_S), ("valid_time", time_s)):
            time = file.create_dataset(name, data=np.int64(at_s))
            time.attrs["units"] = np.bytes_(b"seconds since 1970-01-01 00:00:00 UTC")
        file["valid_time"].attrs["standard_name"] = np.bytes_(b"time")
        proj = file.create_dataset("proj", data=np.int8(0))
        proj.attrs["grid_mapping_name"] = np.bytes_(b"albers_conical_equal_area")
        proj.attrs["standard_parallel"] = np.array([-26.2, -29.3])
        proj.attrs["longitude_of_central_meridian"] = np.array([153.24])
        proj.attrs["latitude_of_projection_origin"] = np.array([-27.7178])


def write_day(folder: Path, frames: NDArray[np.int16]) -> list[Path]:
    """Write frames, ten minutes apart, named by their number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"frame_{number:03}.nc" for number in range(len(frames))]
    for number, (path, counts) in enumerate(zip(paths, frames, strict=True)):
        write_netcdf(path, counts, BEGAN_S + number * STEP_S)
    return paths


def moving(num: int, side: int = 24, speed: int = 1) -> NDArray[np.int16]:
    """Return counts of a square cell of rain that moves to the right."""
    frames = np.zeros((num, side, side), np.int16)
    for number in range(num):
        left = 2 + speed * number % max(1, side - 10)
        frames[number, 6:14, left : left + 8] = 40
    return frames


def write_odim(path: Path, raw: NDArray[np.uint8], date: str, time: str) -> None:
    """Write a composite of reflectivity: 255 is nodata, 0 is undetect."""
    with h5py.File(path, "w") as file:
        what = file.create_group("what")
        what.attrs.update({"object": "COMP", "date": date, "time": time})
        where = file.create_group("where")
        where.attrs.update({"projdef": "+proj=utm +zone=32 +datum=WGS84", "xscale": 1000.0, "yscale": 1000.0})
        where.attrs.update({"UL_lon": 9.0, "UL_lat": 50.0})
        file.create_dataset("dataset1/data1/data", data=raw)
        about = file.create_group("dataset1/data1/what")
        about.attrs.update(
            {"quantity": "DBZH", "gain": 0.5, "offset": -32.0, "nodata": 255.0, "undetect": 0.0}
        )
