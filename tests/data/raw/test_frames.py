"""Frames at a fixed step: taken where they are, made between two, left out in a gap; unknown stays unknown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from tests.conftest import WriteRaster

from outsize.data.radar import frame_files, frames_in_order
from outsize.data.raw import raw_pieces
from outsize.data.raw.frames import FrameSettings, at_steps, prepare_frame
from outsize.errors import DataError, JobError
from outsize.job import ClassSpec, DataSection, FramesSection, PrepareSection
from outsize.prepare.piece import Piece
from outsize.raster.georef import GeoRef
from outsize.units import seconds_of

_MIN = 60
_PLAIN = FrameSettings(300.0, None, None, "nearest")
_UTM = GeoRef(rasterio.crs.CRS.from_epsg(32632).to_wkt(), (1000.0, 0.0, 5e5, 0.0, -1000.0, 5e6))


@dataclass(frozen=True)
class _Frame:
    time_s: int
    rain: Any = None
    georef: GeoRef = _UTM
    number: int = 0

    @property
    def path(self) -> Path:
        return Path(f"{self.time_s}")

    def read(self) -> Any:
        return np.asarray(self.rain, np.float32)


def _at(*minutes: float) -> list[_Frame]:
    return [_Frame(round(_MIN * each)) for each in minutes]


def _shown(frames: list[_Frame], step: float, most_apart: float) -> dict[float, list[tuple[float, float]]]:
    found = at_steps(frames, round(_MIN * step), _MIN * most_apart)
    return {
        time_s / _MIN: [(frame.time_s / _MIN, round(weight, 3)) for frame, weight in weighted]
        for time_s, weighted in found.items()
    }


def test_frames_at_the_step_are_taken_as_they_are_and_a_gap_stays_one() -> None:
    assert _shown(_at(3, 13, 33), 10, 15) == {3.0: [(3.0, 1.0)], 13.0: [(13.0, 1.0)], 33.0: [(33.0, 1.0)]}
    assert _shown(_at(3, 13, 33), 10, 20)[23.0] == [(13.0, 0.5), (33.0, 0.5)]


def test_frames_at_other_times_are_brought_to_round_ones() -> None:
    assert _shown(_at(58, 66, 73, 79.5), 10, 20) == {
        60.0: [(58.0, 0.75), (66.0, 0.25)],
        70.0: [(66.0, 0.429), (73.0, 0.571)],
        80.0: [(79.5, 1.0)],  # half a minute is no difference
    }
    assert at_steps([], 600, 600) == {}


def test_before_the_first_and_after_the_last_frame_nothing_is_made() -> None:
    assert list(_shown(_at(4, 9, 17), 10, 20)) == [10.0]


def test_a_field_between_two_is_their_mean_and_what_one_does_not_know_is_unknown(tmp_path: Path) -> None:
    one = _Frame(0, [[1.0, np.nan, 4.0, 500.0, -1.0]])
    two = _Frame(600, [[3.0, 2.0, 4.0, 1.0, 1.0]])
    facts = prepare_frame(seconds_of("2020-10-31T08:05"), ((one, 0.5), (two, 0.5)), _PLAIN, tmp_path)
    assert facts["20201031T0805Z.tif"] == {
        "time": "2020-10-31T08:05Z",
        "pixels": 5,
        "known": 2,
        "frames": 2,
        "mean_mm_h": 3.0,
        "max_mm_h": 4.0,
        "wet": 2,
    }
    (frame,), _ = frames_in_order(frame_files(tmp_path), FramesSection())
    assert frame.time_s == seconds_of("2020-10-31T08:05")
    np.testing.assert_allclose(frame.read(), [[2.0, np.nan, 4.0, np.nan, np.nan]], atol=0.005)


def test_another_grid_has_the_rain_at_the_same_place(tmp_path: Path) -> None:
    rain = np.zeros((60, 80), np.float32)
    rain[20:40, 30:60] = 5.0
    settings = FrameSettings(300.0, "EPSG:32633", 2000.0, "nearest")
    prepare_frame(0, ((_Frame(0, rain), 1.0),), settings, tmp_path)
    (frame,), _ = frames_in_order(frame_files(tmp_path), FramesSection())
    made = frame.read()
    area = 2.0 * 2.0  # square kilometres
    assert abs(np.nansum(made == 5.0) * area - 600) < 60
    assert np.isnan(made).any()  # it is turned
    assert frame.georef.resolution == pytest.approx((2000, 2000))


def _pieces(folder: Path, **keys: Any) -> list[Piece]:
    section = PrepareSection.model_validate({"frames": "raw", **keys})
    data = DataSection(classes=(ClassSpec(name="a", value=0), ClassSpec(name="b", value=1)))
    return raw_pieces(section, data, folder, "1")


@pytest.fixture
def raw(write_raster: WriteRaster, tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    for minute in (0, 10, 30):
        write_raster(f"raw/2020-10-31T08{minute:02}.tif", np.full((8, 8), minute, np.float32))
    return tmp_path


def test_a_job_s_frames_become_pieces_and_a_broken_file_one_that_says_why(raw: Path) -> None:
    (raw / "raw" / "2020-10-31T0820.h5").write_bytes(b"\x89HDF\r\n\x1a\nnot really")
    pieces = _pieces(raw, max_gap_minutes=15)
    assert [each.name for each in pieces] == [
        "20201031T0800Z",
        "20201031T0810Z",
        "20201031T0830Z",
        "2020-10-31T0820.h5",
    ]
    assert pieces[-1].outputs == ()
    with pytest.raises(DataError, match=r"0820\.h5 cannot be read"):
        pieces[-1].make(raw)
    (between,) = [each for each in _pieces(raw) if each.name == "20201031T0820Z"]
    assert len(between.sources) == 2


def test_settings_decide_and_times_that_fall_are_refused(raw: Path, write_raster: WriteRaster) -> None:
    keys = [{}, {"max_mm_h": 100.0}, {"crs": "EPSG:32633"}, {"unit": "mm"}]
    assert len({_pieces(raw, **each)[0].settings for each in keys}) == 4
    with pytest.raises(JobError, match="not clear what to prepare: found both"):
        _pieces(raw, images=["*.tif"])
    with pytest.raises(DataError, match="no frame in"):
        _pieces(raw, frames="nowhere")
    write_raster("raw/z_2020-10-31T0805.tif", np.zeros((8, 8), np.float32))
    with pytest.raises(DataError, match="out of order"):
        _pieces(raw)


def test_a_piece_travels_between_processes(raw: Path) -> None:
    import pickle

    piece = pickle.loads(pickle.dumps(_pieces(raw)[0]))
    assert isinstance(piece.make, partial)
    assert list(piece.make(raw / "to")) == ["20201031T0800Z.tif"]
