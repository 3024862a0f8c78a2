"""`outsize bench share`: two processes of a small job, its section of a report, and mistakes in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.commands.conftest import Run

from outsize.bench import apart, sharing
from outsize.commands.bench import share
from outsize.measurement import read_measurement
from outsize.progress import Reporter
from outsize.report.gather import gather
from outsize.report.sections.benches import show_sharing
from outsize.report.tables import share_table


def test_two_processes_share_a_cpu(
    job_path: Path, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "START", "forkserver")
    monkeypatch.setattr(sharing, "TURN_S", 0.0)
    out = tmp_path / "out"
    how = {"device_name": "cpu", "out": out, "reporter": Reporter("quiet"), "minutes": 0.0}
    found = share(job_path, overrides=(), num=2, rounds=3, **how)
    assert read_measurement(out / "bench/share.json") == found
    assert [(each["way"], each["processes"]) for each in found.rows] == [
        ("whole", 1),
        ("alone", 1),
        ("together", 2),
    ]
    assert found.rows[1]["limit_bytes"] == found.rows[0]["limit_bytes"] // 2 == 2**29
    assert found.rows[2]["peak_bytes"] == pytest.approx(found.rows[0]["peak_bytes"], rel=0.2)
    heads, rows, remarks = share_table(found)
    assert {len(each) for each in rows} == {len(heads)}
    assert remarks[0].startswith("2 processes at once make")
    run = tmp_path / "reported"
    shutil.copytree(trained_run, run)
    shutil.copytree(out / "bench", run / "bench")
    assert "Sharing the device" in str(show_sharing(gather(run)))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("-n", "1"), ("nothing to share", "-n 1", "2 or more")),
        (("-n", "2", "--set", "limits.host_memory=3MiB"), ("take fewer processes (-n)",)),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, job_path: Path, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    run("bench", "share", job_path, *options, "--device", "cpu").refused(*parts)
