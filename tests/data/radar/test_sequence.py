"""Windows of frames: gaps counted, disorder refused, shared out by time without a leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.radar.rain_files import BEGAN_S, STEP_S

from outsize.data.radar.frames import Frame
from outsize.data.radar.listing import refuse_disorder
from outsize.data.radar.sequence import cut, newest, share
from outsize.errors import DataError, JobError
from outsize.job import FramesSection, SplitSection
from outsize.raster.georef import NO_PLACE
from outsize.units import clock

SECTION = FramesSection(num_in=3, num_out=2)


def frame(step: float, height: int = 4) -> Frame:
    time_s = round(BEGAN_S + step * STEP_S)
    return Frame(
        Path(f"{step:06.1f}.nc"), 0, time_s, height, 4, NO_PLACE, lambda: np.zeros((4, 4), np.float32)
    )


def frames(num: int, without: tuple[int, ...] = ()) -> list[Frame]:
    return [frame(step) for step in range(num) if step not in without]


def test_windows_follow_one_another_and_gaps_are_counted() -> None:
    windows, num_gaps = cut(frames(10), SECTION)
    assert (len(windows), num_gaps) == (6, 0)
    assert [clock(window.issued_s)[-6:] for window in windows[:2]] == ["12:50Z", "13:00Z"]
    windows, num_gaps = cut(frames(10, without=(6,)), SECTION)
    assert (len(windows), num_gaps) == (2, 4)
    late = [*frames(4), frame(4.05), *frames(10)[5:]]  # within a tenth of a step
    assert len(cut(late, SECTION)[0]) == 6
    late[4] = frame(4.3)
    assert len(cut(late, SECTION)[0]) == 1


def test_the_newest_frames_must_be_whole() -> None:
    assert [each.time_s for each in newest(frames(10, without=(2,)), SECTION)] == [
        BEGAN_S + step * STEP_S for step in (7, 8, 9)
    ]
    with pytest.raises(DataError, match="too few frames to forecast from: found 2"):
        newest(frames(2), SECTION)
    with pytest.raises(DataError, match="20 min between"):
        newest(frames(10, without=(8,)), SECTION)


def test_disorder_is_refused() -> None:
    good = frames(4)
    refuse_disorder(good)
    with pytest.raises(DataError, match="is there twice"):
        refuse_disorder([*good, good[-1]])
    with pytest.raises(DataError, match=r"0000\.0\.nc is out of order"):
        refuse_disorder([*good, good[0]])
    with pytest.raises(DataError, match="another size: found 5 x 4 px"):
        refuse_disorder([*good, frame(5, height=5)])


def test_shares_forecast_what_was_not_learnt() -> None:
    windows, _ = cut(frames(40), SECTION)
    shared = share(windows, SplitSection(val=0.1, test=0.2))
    assert [len(shared[name]) for name in ("train", "val", "test")] == [23, 4, 7]
    learnt = {each.time_s for window in shared["train"] for each in window.every}
    forecast = {name: {each.time_s for window in shared[name] for each in window.targets} for name in shared}
    assert max(learnt) < min(forecast["val"])
    assert max(forecast["val"]) < min(forecast["test"])
    far = share(windows, SplitSection(val=0.1, test=0.2, gap_minutes=30))
    assert min(forecast["val"]) > max(each.time_s for each in far["train"][-1].every) + 1800


def test_a_short_day_with_a_gap_leaves_windows_to_learn() -> None:
    section = FramesSection()  # 10 frames seen, 10 to come
    windows, _ = cut(frames(88, without=(40,)), section)
    shared = share(windows, SplitSection(val=0.15, test=0.15))
    assert [len(shared[name]) for name in ("train", "val", "test")] == [21, 7, 7]
    with pytest.raises(JobError, match=r"found 3 windows, 0 for val, 1 for test.*lower data\.split\.val"):
        share(windows[:3], SplitSection(val=0.15, test=0.15))


def test_named_times() -> None:
    windows, _ = cut(frames(30), SECTION)

    def split(test: str, gap: float = 0) -> SplitSection:
        train = "2020-09-13T12:30/2020-09-13T14:00"
        return SplitSection(train_times=(train,), test_times=(test,), gap_minutes=gap)

    shared = share(windows, split("2020-09-13T14:30/2020-09-13T15:00"))
    assert [len(shared[name]) for name in ("train", "val", "test")] == [6, 0, 4]
    assert clock(shared["train"][-1].targets[-1].time_s) == "2020-09-13T14:00Z"
    with pytest.raises(DataError, match="the split leaks"):
        share(windows, split("2020-09-13T13:40/2020-09-13T15:00"))
    with pytest.raises(DataError, match="more than 60 min"):
        share(windows, split("2020-09-13T14:30/2020-09-13T15:00", gap=60))
    with pytest.raises(JobError, match="FROM/TO"):
        share(windows, split("yesterday"))
    with pytest.raises(JobError, match="nothing to train on"):
        share(windows, SplitSection(train_times=("2019-01-01/2019-01-02",)))
