"""Frames of netCDF, ODIM and GeoTIFF: numbers, what is unknown, times and places."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.data.radar.rain_files import BEGAN_S, moving, write_netcdf, write_odim

from outsize.data.radar.frames import time_in_name
from outsize.data.radar.listing import frames_in
from outsize.data.radar.units import to_mm_h
from outsize.data.synthetic import write_rain
from outsize.errors import DataError, UnsafeFileError
from outsize.job import FramesSection
from outsize.units import clock, seconds_of

FRAMES = FramesSection(num_in=2, num_out=1)


@pytest.mark.parametrize("up", [False, True])
def test_netcdf_scale_fill_and_rows(up: bool, tmp_path: Path) -> None:
    counts = moving(1)[0]
    counts[0, :3] = (-1, -2, 1)
    write_netcdf(tmp_path / "a.nc", counts, BEGAN_S, up=up)
    (frame,) = frames_in(tmp_path / "a.nc", FRAMES)
    rain = frame.read()
    assert np.isnan(rain[0, :2]).all()  # fill, and what cannot be rain
    assert rain[0, 2] == pytest.approx(0.3)  # 0.05 kg/m2 in ten minutes
    assert rain[8, 4] == pytest.approx(12)
    assert np.count_nonzero(rain == 0) == counts.size - 64 - 3  # no rain is known
    assert (frame.time_s, clock(frame.time_s)) == (BEGAN_S, "2020-09-13T12:30Z")
    assert frame.georef.transform == (1000.0, 0.0, -12000.0, 0.0, -1000.0, 12000.0)
    assert "Albers" in (frame.georef.crs_wkt or "")


def test_odim_tells_no_data_from_no_rain(tmp_path: Path) -> None:
    raw = np.zeros((4, 5), np.uint8)
    raw[1, 1], raw[2, 2] = 255, 142  # 39 dBZ
    write_odim(tmp_path / "a.h5", raw, "20240601", "120500")
    (frame,) = frames_in(tmp_path / "a.h5", FRAMES)
    rain = frame.read()
    assert np.isnan(rain[1, 1])
    assert rain[2, 2] == pytest.approx((10**3.9 / 200) ** (1 / 1.6))
    assert np.count_nonzero(rain == 0) == 18
    assert clock(frame.time_s) == "2024-06-01T12:05Z"
    assert frame.georef.transform[0] == 1000.0


def test_geotiffs_are_as_written(tmp_path: Path) -> None:
    paths = write_rain(tmp_path, 3, 32)
    frames = [each for path in paths for each in frames_in(path, FRAMES)]
    assert [frame.time_s - frames[0].time_s for frame in frames] == [0, 600, 1200]
    assert np.isnan(frames[0].read()[:4, :4]).all()
    assert np.isfinite(frames[0].read()[4:, 4:]).all()


def test_times_in_names() -> None:
    assert clock(time_in_name(Path("66_20201031_063000.prcp-c10.nc"))) == "2020-10-31T06:30Z"
    assert clock(time_in_name(Path("rain_2024-06-01T12:05.tif"))) == "2024-06-01T12:05Z"
    assert seconds_of("2020-10-31T08:00+02:00") == seconds_of("2020-10-31T06:00")
    with pytest.raises(DataError, match="does not say when"):
        time_in_name(Path("rain_20209931_0630.nc"))


@pytest.mark.parametrize(
    ("unit", "found", "rain"),
    [
        ("mm/h", 3.0, 3.0),
        ("kg m**-2", 0.5, 3.0),
        ("kg m-2 s-1", 0.001, 3.6),
        ("dBZ", 3.0, 0.0),
        ("mm h-1", -1.0, None),
    ],
)
def test_units(unit: str, found: float, rain: float | None) -> None:
    made = to_mm_h(Path("a.nc"), unit, 600)(np.array([found], np.float32))[0]
    assert np.isnan(made) if rain is None else made == pytest.approx(rain)


def test_what_is_no_frame_is_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    for content, words in ((b"<html>", "it begins with"), (b"", "empty"), (b"CDF\x01", "nccopy")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=words) as caught:
            frames_in(path, FRAMES)
        assert "\n" not in str(caught.value)
    write_netcdf(path, moving(1)[0], BEGAN_S)
    path.write_bytes(path.read_bytes()[:900])  # cut
    with pytest.raises(DataError, match="a whole HDF5 file"):
        frames_in(path, FRAMES)
    write_netcdf(path, moving(1)[0], BEGAN_S, unit="furlongs")
    with pytest.raises(DataError, match=r"data\.frames\.unit"):
        frames_in(path, FRAMES)


def test_two_fields_must_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    write_netcdf(path, moving(1)[0], BEGAN_S)
    with h5py.File(path, "a") as file:
        file.create_dataset("rain_error", data=np.zeros((24, 24)))
    with pytest.raises(DataError, match=r"data\.frames\.variable"):
        frames_in(path, FRAMES)
    assert frames_in(path, FRAMES.model_copy(update={"variable": "precipitation"}))
    with pytest.raises(DataError, match="no such field"):
        frames_in(path, FRAMES.model_copy(update={"variable": "snow"}))


def test_numbers_in_another_file_are_refused(tmp_path: Path) -> None:
    write_netcdf(tmp_path / "a.nc", moving(1)[0], BEGAN_S)
    with h5py.File(tmp_path / "a.nc", "a") as file:
        attributes = dict(file["precipitation"].attrs)
        del file["precipitation"]
        layout = h5py.VirtualLayout((24, 24), "<i2")
        layout[...] = h5py.VirtualSource("/etc/passwd", "rain", (24, 24))
        file.create_virtual_dataset("precipitation", layout).attrs.update(attributes)
    with pytest.raises(UnsafeFileError, match="leads elsewhere"):
        frames_in(tmp_path / "a.nc", FRAMES)
