"""`outsize bench fit`: sizes, batches, budgets and machines in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.commands.conftest import Run

from outsize.commands.bench import fit
from outsize.measurement import Measurement, read_measurement
from outsize.progress import Reporter
from outsize.report.tables import fit_table

_ASKED: dict[str, str | None] = dict.fromkeys(("sizes", "batches", "budgets", "machines"))


def _fit(job_path: Path, out: Path, *, minutes: float = 0.0, **asked: str) -> Measurement:
    how: dict[str, Any] = {"device_name": "cpu", "reporter": Reporter("quiet"), "overrides": ()}
    return fit(job_path, out=out, asked={**_ASKED, **asked}, minutes=minutes, **how)


def test_cells_fit_or_not_here_and_there(job_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = _fit(
        job_path,
        out,
        sizes="64",
        batches="2,8",
        budgets="4MiB,512MiB",
        machines="here,p100-16",
        minutes=600.0,
    )
    assert read_measurement(out / "bench/fit.json") == found
    cells = {(each["machine"], each["batch"], each["budget_bytes"] >> 20): each for each in found.rows}
    assert len(cells) == 8
    assert cells["here", 8, 4]["outcome"] == "out of memory"
    assert "predicted" in cells["here", 8, 4]["why"]
    plenty = cells["here", 2, 512]
    assert plenty["outcome"] == "fits"
    assert plenty["measured_outcome"] == "within"
    assert plenty["peak_bytes"] == pytest.approx(plenty["predicted_peak_bytes"], rel=0.05)
    assert cells["p100-16", 2, 512]["predicted_step_s"] > 0
    assert "measured_outcome" not in cells["p100-16", 2, 512]
    heads, rows, _ = fit_table(found)
    assert len(rows) == 8
    assert all(len(each) == len(heads) for each in rows)


def test_what_does_not_fit_plainly_fits_at_a_cost(job_path: Path, tmp_path: Path) -> None:
    found = _fit(job_path, tmp_path / "out", sizes="64", batches="8", budgets="1GiB")
    plain_bytes = found.rows[0]["predicted_plain_bytes"]
    less = f"{int(0.8 * plain_bytes / 0.7)}B"
    (row,) = _fit(job_path, tmp_path / "out", sizes="64", batches="8", budgets=less).rows
    assert "recompute" in row["outcome"]
    assert row["predicted_over_plain"] > 0
    assert row["predicted_peak_bytes"] < plain_bytes


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--sizes", "big"), ("--sizes", "'big'")),
        (("--machines", "v100-17"), ("unknown machine", "v100-1")),
        (("--budgets", "lots"), ("lots",)),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, job_path: Path, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    run("bench", "fit", job_path, *options).refused(*parts)
