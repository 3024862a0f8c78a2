"""`outsize bench batch`: a small job measured from end to end, and one line for what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.commands.conftest import Run

from outsize.bench import apart, batches
from outsize.commands.bench import batch
from outsize.measurement import read_measurement
from outsize.progress import Reporter
from outsize.report.tables import batch_table, text_table


def test_batches_are_measured_up_to_out_of_memory(
    job_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_TURN_S", 0.0)
    monkeypatch.setattr(apart, "START", "forkserver")
    how = {"device_name": "cpu", "out": tmp_path / "out", "reporter": Reporter("quiet"), "minutes": 600.0}
    found = batch(job_path, overrides=["limits.host_memory=16MiB"], batches="64, 1,2,2", rounds=1, **how)
    assert read_measurement(tmp_path / "out/bench/batch.json") == found
    assert [each["batch"] for each in found.rows] == [1, 2, 64]
    assert found.rows[2]["failed"].startswith("out of memory")
    assert found.machine.gpu is None
    assert found.machine.limits == {"host_memory": 2**24}
    for row in found.rows[:2]:
        assert row["peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.05)
    assert 1 < found.rows[1]["peak_bytes"] / found.rows[0]["peak_bytes"] < 2.1
    heads, rows, remarks = batch_table(found)
    assert len(heads) == len(rows[0])
    assert rows[0][heads.index("GPU use")] == "no GPU"
    assert remarks[0] == f"batch 64: {found.rows[2]['failed']}"
    assert found.about["crowding"] >= 1
    crowded = replace(found, about={"crowding": 4.12})
    assert "computing took 4.1 times its own time" in batch_table(crowded)[2][-1]
    assert len(batch_table(replace(found, about={"crowding": 1.0}))[2]) == 1
    assert "out of memory" in text_table(heads, rows, remarks, title="a title")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--batches", "1,x"), ("--batches", "'x'", "1,2,4,8")),
        (("--batches", "0"), ("--batches", "'0'", "whole numbers above 0")),
        (("--batches", ","), ("--batches", "','")),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, job_path: Path, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    run("bench", "batch", job_path, *options).refused(*parts)
