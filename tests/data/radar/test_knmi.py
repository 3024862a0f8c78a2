"""Frames as KNMI writes them: counts by a formula, a grid in kilometres, times in its own words."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from pyproj import CRS, Transformer

from outsize.data.radar.listing import frames_in
from outsize.errors import DataError
from outsize.job import FramesSection
from outsize.units import clock

FRAMES = FramesSection(num_in=2, num_out=1, step_minutes=5)
STEREO = "+proj=stere +lat_0=90 +lon_0=0.0 +lat_ts=60.0 +a=6378.137 +b=6356.752 +x_0=0 +y_0=0"


def write(path: Path, *, formula: str = "GEO=0.010000*PV+0.000000", parameter: str = "PRECIP_[MM]") -> Path:
    counts = np.zeros((6, 5), np.uint16)
    counts[0, 0], counts[1, 1], counts[2, 2] = 65535, 65534, 25
    with h5py.File(path, "w") as file:
        overview = file.create_group("overview").attrs
        overview["product_datetime_start"] = np.bytes_(b"30-JUN-2012;23:55:00.000")
        overview["product_datetime_end"] = np.bytes_(b"01-JUL-2012;00:00:00.000")
        sizes = {"geo_pixel_size_x": [1.0], "geo_pixel_size_y": [-1.0]}
        where = file.create_group("geographic")
        where.attrs.update(sizes | {"geo_column_offset": [0.0], "geo_row_offset": [3650.0]})
        where.create_group("map_projection").attrs["projection_proj4_params"] = np.bytes_(STEREO.encode())
        image = file.create_group("image1")
        image.attrs["image_geo_parameter"] = np.bytes_(parameter.encode())
        image.create_dataset("image_data", data=counts)
        about = image.create_group("calibration").attrs
        about.update({"calibration_missing_data": [65534], "calibration_out_of_image": [65535]})
        about["calibration_formulas"] = np.bytes_(formula.encode())
    return path


def test_counts_times_and_place(tmp_path: Path) -> None:
    (frame,) = frames_in(write(tmp_path / "RAD_NL25_RAP_5min_201206302355.h5"), FRAMES)
    rain = frame.read()
    assert np.isnan(rain[[0, 1], [0, 1]]).all()
    assert rain[2, 2] == pytest.approx(3.0)  # 0.25 mm in five minutes
    assert np.count_nonzero(rain == 0) == 27
    assert clock(frame.time_s) == "2012-07-01T00:00Z"
    assert frame.georef.transform == (1000.0, 0.0, 0.0, 0.0, -1000.0, -3650000.0)
    # the upper left corner of the composite, as its files tell it
    to_metres = Transformer.from_crs(4326, CRS.from_wkt(frame.georef.crs_wkt), always_xy=True)
    assert to_metres.transform(0.0, 55.973602) == pytest.approx((0.0, -3650e3), abs=100)


def test_reflectivity_and_what_is_not_understood(tmp_path: Path) -> None:
    kinds = {"formula": "GEO = 0.500000*PV + -32.000000", "parameter": "REFLECTIVITY_[DBZ]"}
    (frame,) = frames_in(write(tmp_path / "a.h5", **kinds), FRAMES)
    assert frame.read()[2, 2] == 0  # -19.5 dBZ
    with pytest.raises(DataError, match=r"a\.h5 counts is not known: found 'PV/2'"):
        frames_in(write(tmp_path / "a.h5", formula="PV/2"), FRAMES)
    with pytest.raises(DataError, match=r"set data\.frames\.unit"):
        frames_in(write(tmp_path / "a.h5", parameter="PRECIP"), FRAMES)
