"""The section on frames."""

from __future__ import annotations

import pytest

from outsize.errors import JobError
from outsize.job import check_job


def data(**frames: object) -> dict[str, object]:
    return {"task": "forecast", "data": {"format": "radar", "root": "in", "frames": frames}}


def test_names_of_bands_and_leads() -> None:
    frames = check_job(data(num_in=3, num_out=2, step_minutes=5), "job").data.frames
    assert frames.input_names == ("-10 min", "-5 min", "now", "flow +5 min", "flow +10 min")
    assert frames.step_s == 300
    plain = check_job(data(num_in=3, flow="none"), "job").data
    assert plain.frames.input_names == ("-20 min", "-10 min", "now")
    assert [each.name for each in plain.classes] == list(plain.frames.lead_names)
    assert plain.kind == "frames"


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"num_in": 1}, "num_in"), ({"flow": "fast"}, "flow"), ({"thresholds": [5, 1]}, "smallest first")],
)
def test_mistakes(keys: dict[str, object], words: str) -> None:
    with pytest.raises(JobError, match=words):
        check_job(data(**keys), "job")


def test_frames_are_for_forecasts() -> None:
    with pytest.raises(JobError, match=r"data\.numbers is not for this task"):
        check_job({"task": "segment", "data": {"format": "radar", "numbers": True}}, "job")
