"""The format radar from files to scenes: bands, truth, what is left out, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.radar.rain_files import moving, write_day, write_netcdf

from outsize.data.catalogue import open_data
from outsize.data.formats.radar import find_radar
from outsize.data.frames import to_levels, to_rain
from outsize.data.made import truth_beside
from outsize.data.radar import newest_frames
from outsize.errors import DataError, OutsizeError
from outsize.job import DataSection, check_job
from outsize.raster.reading import SceneReader, describe


def section(root: Path, **frames: object) -> DataSection:
    data = {"format": "radar", "root": str(root), "split": {"val": 0.1, "test": 0.1}}
    data["frames"] = {"num_in": 3, "num_out": 2, **frames}
    return check_job({"task": "forecast", "data": data}, "job").data


def test_scenes_hold_frames_and_what_follows(tmp_path: Path) -> None:
    counts = moving(16)
    counts[:, 0, 0] = -1
    write_day(tmp_path / "in", counts)
    data = section(tmp_path / "in")
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    (scene, *_) = splits.train
    assert scene.is_numbers
    assert scene.image.band_names == ("-20 min", "-10 min", "now", "flow +10 min", "flow +20 min")
    assert scene.labels.band_names == ("2020-09-13T13:00Z", "2020-09-13T13:10Z")
    assert scene.labels.path == truth_beside(scene.image.path)
    with SceneReader(scene.image) as seen, SceneReader(scene.labels) as truth:
        inputs, targets = seen.read(scene.image.window), truth.read(scene.labels.window)
    assert inputs.valid.all()
    np.testing.assert_array_equal(
        inputs.pixels[:3], to_levels(np.where(counts[:3] < 0, np.nan, counts[:3] * 0.3))
    )
    np.testing.assert_allclose(to_rain(targets.pixels[0])[1:], counts[3, 1:] * 0.3, rtol=2e-3)
    carried = to_rain(inputs.pixels[3])  # a cell that moves is where it will be
    assert np.nanmean(np.abs(carried - counts[3] * 0.3)) < np.abs(counts[2] - counts[3]).mean() * 0.3 / 2
    again = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    assert again.train[0].image == scene.image


def test_windows_played_backwards_are_learnt_from_alone(tmp_path: Path) -> None:
    write_day(tmp_path / "in", moving(16))
    plain, both = (
        open_data(section(tmp_path / "in", backwards=on), seed=0, halo_px=0, cache=tmp_path / "cache")
        for on in (False, True)
    )
    assert (len(both.train), len(both.val), len(both.test)) == (2 * len(plain.train), 1, len(plain.test))
    scene = both.train[len(plain.train)]
    assert scene.image.path.name == "20200913T1250Z-back.vrt"
    assert scene.labels.band_names == ("2020-09-13T12:40Z", "2020-09-13T12:30Z")
    forward = plain.train[0]
    with SceneReader(scene.labels) as back, SceneReader(forward.image) as front:
        last, first = back.read(scene.labels.window).pixels[1], front.read(forward.image.window).pixels[0]
    np.testing.assert_array_equal(last, first)


def test_bad_files_are_gaps_where_that_is_allowed(tmp_path: Path) -> None:
    paths = write_day(tmp_path, moving(30))
    paths[7].write_bytes(b"no HDF5")
    (fault,) = find_radar(section(tmp_path), 0).faults
    assert "frame_007.nc is no file of frames" in str(fault)
    layout = find_radar(section(tmp_path).model_copy(update={"max_bad_share": 0.1}), 0)
    assert any("5 windows of 5 frames left out" in note for note in layout.notes)
    assert any("frame_007.nc" in note for note in layout.notes)


def test_what_stands_in_the_way(tmp_path: Path) -> None:
    (fault,) = find_radar(section(tmp_path), 0).faults
    assert "no frame in" in str(fault)
    paths = write_day(tmp_path, moving(16))
    write_netcdf(paths[3], np.zeros((5, 24), np.int16), 1_600_000_200 + 3 * 600)
    (fault,) = find_radar(section(tmp_path), 0).faults
    assert "frame_003.nc is of another size" in str(fault)
    paths[3].unlink()
    paths[4].rename(tmp_path / "frame_100.nc")
    (fault,) = find_radar(section(tmp_path), 0).faults
    assert "frame_100.nc is out of order" in str(fault)
    with pytest.raises(OutsizeError, match="too few frames"):
        newest_frames([tmp_path / "frame_100.nc"], section(tmp_path).frames, tmp_path)


def test_the_newest_frames_become_a_scene(tmp_path: Path) -> None:
    paths = write_day(tmp_path / "in", moving(6))
    info = newest_frames([tmp_path / "in"], section(tmp_path / "in").frames, tmp_path / "cache")
    assert info.path.name == "20200913T1320Z.tif"
    assert newest_frames(paths[1:], section(tmp_path / "in").frames, tmp_path / "cache").path == info.path
    assert describe(info.path).band_names[2:4] == ("now", "flow +10 min")
    plain = newest_frames(paths, section(tmp_path / "in", flow="none").frames, tmp_path / "other")
    assert plain.num_bands == 3
    with pytest.raises(DataError, match="no such file"):
        newest_frames([tmp_path / "in" / "frame_9.nc"], section(tmp_path / "in").frames, tmp_path)
