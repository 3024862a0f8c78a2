"""What more workers would bring: from what was measured, of what they share, and where something waits for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.workflow.lines import stage

from outsize.workflow.timeline import Lap, as_json, gains, timeline_lines, whole_s

_HOUR = 3600.0


def _published() -> list[Lap]:
    """The published nowcasting workflow: 13 h download, 4 h processing, 24 h training on 8 GPUs, 10 s inference."""
    laps, begins, after = [], 0.0, ()
    for name, uses, seconds, workers in (
        ("acquire", "network", 13 * _HOUR, 1),
        ("prepare", "cores", 4 * _HOUR, 1024),
        ("train", "device", 24 * _HOUR, 8),
        ("predict", "device", 10.0, 1),
    ):
        laps.append(Lap(name, uses, after, begins, seconds, seconds, workers))
        begins, after = begins + seconds, (name,)
    return laps


def test_eight_more_gpus_of_a_training_that_had_eight_halve_it_and_do_not_divide_it_by_sixteen() -> None:
    found = gains(_published())["train"]
    assert found[2] == pytest.approx(1.41, abs=0.005)
    assert found[float("inf")] == pytest.approx(2.41, abs=0.005)


def test_what_no_worker_shares_does_not_shrink() -> None:
    lap = Lap("a", "cores", (), 0.0, 10.0, 6.0, 2)
    assert whole_s([lap], {"a": 2.0}) == 7.0
    assert whole_s([lap], {"a": float("inf")}) == 4.0


def test_a_stage_beside_a_longer_one_brings_nothing() -> None:
    short = Lap("short", "network", (), 0.0, 5.0, 5.0, 1)
    long = Lap("long", "device", (), 0.0, 20.0, 20.0, 1)
    last = Lap("last", "cores", ("short", "long"), 20.0, 1.0, 1.0, 1)
    assert whole_s([short, long, last]) == 21.0
    assert gains([short, long, last])["short"][2] == 1.0
    assert gains([short, long, last])["long"][2] == pytest.approx(21 / 11)


def test_one_thing_is_used_by_one_stage_at_a_time() -> None:
    laps = [Lap(name, "device", (), 10.0 * number, 10.0, 10.0, 1) for number, name in enumerate("ab")]
    assert whole_s(laps) == 20.0


def test_a_stage_says_itself_what_its_workers_shared(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"event": "prepare", "shared_s": 3.0, "workers": 2}\nsomething else\n')
    lap = Lap.of(stage(tmp_path, "p", "", verb="prepare"), 1.0, 5.0, log)
    assert (lap.shared_s, lap.workers, lap.end_s) == (3.0, 2, 6.0)
    log.write_text("no word of it\n")
    assert Lap.of(stage(tmp_path, "p", "", verb="prepare"), 1.0, 5.0, log).shared_s == 0.0


def test_lines_and_file_name_the_stage_that_gains_most() -> None:
    lines = timeline_lines(_published())
    assert lines[-1].endswith("twice as many workers help most at train: 1.41 times as fast, at best")
    assert "32%" in lines[1].replace("31.7%", "32%")
    tree = json.loads(as_json(_published()))
    assert tree["stages"][2]["times_as_fast"] == {"2": 1.4138, "4": 1.7825, "inf": 2.4115}
    assert timeline_lines([]) == ["nothing ran"]
