"""A folder is told to hold frames of radar, however many of them are in a file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from tests.data.radar.rain_files import moving, write_day

from outsize.data.radar import frames_below


def test_many_frames_in_one_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rain.h5", "w") as file:
        rain = file.create_dataset("rainfall", data=moving(6))
        rain.attrs["units"] = "mm"
        file.create_dataset("time", data=np.arange(6) * 15.0).attrs["units"] = "minutes since 2023-07-02"
    assert frames_below(tmp_path) == (1, 15.0)


def test_too_few_frames_are_no_radar(tmp_path: Path) -> None:
    paths = write_day(tmp_path, moving(4))
    assert frames_below(tmp_path) == (4, 10.0)
    paths[0].unlink()
    assert frames_below(tmp_path) is None
