"""Windows of frames: a function of their key, more of them where it will rain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.formats.test_radar import section
from tests.data.radar.rain_files import write_day

from outsize.data.catalogue import open_data
from outsize.data.frames import UNKNOWN, NumberGrid
from outsize.data.sampling import RainWindows
from outsize.errors import JobError


def opened(
    folder: Path, wet_share: float = 0.0, augment: tuple[str, ...] = (), tile_px: int = 16
) -> RainWindows:
    counts = np.zeros((22, 80, 160), np.int16)
    counts[:, 70:78, 140:150] = 40
    write_day(folder / "in", counts)
    splits = open_data(section(folder / "in"), seed=0, halo_px=0, cache=folder / "cache")
    known = {
        "tile_px": tile_px,
        "augmentations": augment,
        "wet_share": wet_share,
        "wet_level": 1099,
        "seed": 1,
    }
    return RainWindows(splits.train, **known)


def test_a_sample_is_a_function_of_its_key(tmp_path: Path) -> None:
    windows = opened(tmp_path, 0.5, ("flip", "turn"))
    first, again = windows.sample(1, 7), windows.sample(1, 7)
    np.testing.assert_array_equal(first.image, again.image)
    assert isinstance(first.target, NumberGrid)
    assert (first.image.shape, first.target.numbers.shape, first.target.base) == ((5, 16, 16), (2, 16, 16), 3)
    assert windows.sample_bytes == 16 * 16 * (2 * 7 + 1)
    windows.close()


def test_windows_are_drawn_where_it_will_rain(tmp_path: Path) -> None:
    windows = opened(tmp_path, 1.0)
    wet = [windows.sample(0, index).target.count(2).size and _has_rain(windows, index) for index in range(20)]
    windows.close()
    dry = opened(tmp_path, 0.0)
    assert sum(wet) > 2 * sum(_has_rain(dry, index) for index in range(20))
    dry.close()


def _has_rain(windows: RainWindows, index: int) -> bool:
    target = windows.sample(0, index).target
    assert isinstance(target, NumberGrid)
    return bool((target.numbers > 1000).any())


def test_outside_of_the_frames_nothing_is_known(tmp_path: Path) -> None:
    windows = opened(tmp_path, tile_px=96)
    sample = windows.sample(0, 0)
    assert isinstance(sample.target, NumberGrid)
    assert not sample.valid[-1].any()
    assert (sample.target.numbers[:, ~sample.valid] == UNKNOWN).all()
    windows.close()


def test_colours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="flip, turn"):
        opened(tmp_path, augment=("flip", "noise"))
