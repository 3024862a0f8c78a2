"""`outsize bench memory`: a small job measured from end to end, and one line for what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.commands.conftest import Run, contents
from tests.conftest import write_job
from typer.testing import CliRunner

from outsize import cli
from outsize.commands.bench import memory
from outsize.commands.results.report import report
from outsize.errors import DataError
from outsize.files.ownership import mark
from outsize.progress import Reporter
from outsize.report.measured import memory_table


def test_a_job_is_measured(job_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    found = memory(
        job_path,
        overrides=["limits.host_memory=4MiB"],  # budgets take its place
        device_name="cpu",
        out=out,
        budgets="0.9, 0.02, 95%",
        ways="checkpoint,ours",
        rounds=2,
        reporter=Reporter("json"),
    )
    assert sorted(contents(out)) == [
        ".outsize",
        "bench",
        "bench/memory.json",
        "bench/memory.png",
        "job.toml",
    ]
    written = json.loads((out / "bench" / "memory.json").read_text())
    assert written["schema"] == 1
    assert written["job"] == {**written["job"], "model": "unet", "batch": 2, "side_px": 64}
    assert written["versions"]["torch"]
    rows = {each["way"]: each for each in found.rows}
    assert list(rows) == ["plain", "again", "checkpoint", "ours-0.9", "ours-0.02", "ours-95%"]
    ours = rows["ours-0.9"]
    assert ours["failed"] is None
    assert ours["peak_bytes"] < rows["plain"]["peak_bytes"]
    assert ours["peak_bytes"] <= 1.01 * ours["budget_bytes"]
    assert abs(ours["peak_error"]) < 0.05
    assert ours["predicted_ms"] > 0
    assert rows["checkpoint"]["peak_bytes"] < rows["plain"]["peak_bytes"]
    # on a CPU all of a budget is planned for
    assert ours["predicted_peak_bytes"] > 0.75 * ours["budget_bytes"]
    assert "does not fit" in rows["ours-0.02"]["failed"]
    assert "100% of the limit)" in rows["ours-0.02"]["failed"]
    assert rows["ours-0.02"]["failed"].endswith("or give ours more with --budgets")
    assert "_memory" not in rows["ours-0.02"]["failed"]
    assert "\x1b" not in memory_table(found)
    steady, unsteady = (replace(found, about={**found.about, "control": each}) for each in (1.01, 0.7))
    assert "scatter" not in memory_table(steady)
    assert "scatter by 30%" in memory_table(unsteady)
    *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["event"] == "bench"
    assert "plan" not in last["rows"][3]
    assert "ours, 2 % does not run: training 2 windows of 64 px does not fit" in last["text"]
    for text in ("checkpoint every block", "plain again", "Plain is plain eager"):
        assert text in last["text"]
    page = report([out], out=None, reporter=Reporter("quiet")).read_text()
    assert "Memory against time" in page
    assert "data:image/png" in page


def test_the_job_of_a_run_stays(trained_run: Path, tmp_path: Path, job_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    mark(out)
    (out / "job.toml").write_bytes((trained_run / "job.toml").read_bytes())
    how = {"overrides": (), "device_name": "cpu", "out": None, "budgets": None, "reporter": Reporter("quiet")}
    memory(job_path, ways="plain", rounds=1, **how)
    assert (out / "job.toml").read_bytes() == (trained_run / "job.toml").read_bytes()
    assert (out / "bench" / "memory.png").is_file()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--ways", "plain,ceckpoint"), ("--ways", "'ceckpoint'", "did you mean checkpoint")),
        (("--budgets", "0.5,1.5"), ("--budgets", "found 1.5", "up to 1")),
        (("--budgets", "0"), ("--budgets", "found 0")),
        (("--budgets", "half"), ("--budgets", "'half'", "0.5,0.33,0.25")),
        (("--budgets", ","), ("--budgets is empty", "','")),
        (("--device", "cuda:7"), ("no such device", "cuda:7")),
        (("--set", "train.batch=0"), ("train.batch",)),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, job_path: Path, unchanged: Callable[[], None], options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    unchanged()
    run("bench", "memory", job_path, *options).refused(*parts)


def test_a_folder_that_cannot_be_is_found_out_before_anything_is_measured(run: Run, job_path: Path) -> None:
    out = job_path / "out"
    run("bench", "memory", job_path, "--ways", "plain", "--out", out).refused(f"cannot write {out}")


def test_the_run_is_held_and_marked_while_it_is_measured(
    job_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the folder of one that was killed would be nobody's, and refused."""
    out, seen = tmp_path / "out", set[str]()

    def lay(*_: object) -> None:
        seen.update(each.name for each in out.iterdir())
        raise DataError("no data")

    monkeypatch.setattr("outsize.planning.jobs.lay", lay)
    how = {"overrides": (), "device_name": "cpu", "budgets": None, "reporter": Reporter("quiet")}
    with pytest.raises(DataError):
        memory(job_path, out=out, ways="plain", rounds=1, **how)
    assert seen == {".outsize", ".outsize.lock", "bench"}
    assert not out.exists()


def test_a_job_that_trains_nothing(run: Run, tmp_path: Path, scenes: Path) -> None:
    job = write_job(tmp_path / "job.toml", scenes)
    text = job.read_text()
    begin, end = text.index("[train]"), text.index("[limits]")
    job.write_text(text[:begin] + text[end:])
    run("bench", "memory", job).refused(str(job), "no section [train]", "--set train.batch=4")


def test_a_model_that_cannot_be_built_names_the_job(run: Run, job_path: Path) -> None:
    run("bench", "memory", job_path, "--set", "model.name=nnet", "--ways", "plain").refused(
        "nnet", "job.toml"
    )


def test_bench_has_help() -> None:
    for words, text in ((("bench",), "memory"), (("bench", "memory"), "--budgets")):
        shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
        assert shown.exit_code == 0
        assert text in shown.output
