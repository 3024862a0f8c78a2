"""`outsize run`: from files to a report in one command, and what it says before it does so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rasterio
from tests.commands.conftest import Run
from tests.conftest import write_job

from outsize.data.synthetic.scenes import CLASSES, draw_scene


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    """A workflow whose job fetches, prepares and learns from three small scenes."""
    for number, split in enumerate(("train", "val", "test")):
        draw_scene(tmp_path / "there", f"{split}-{number}", 160, 208, seed=number, vectors=False)
        with rasterio.open(tmp_path / "there" / f"{split}-{number}_labels.tif", "r+") as labels:
            values = labels.read(1)
            values[80:86, 100] = [each.value for each in CLASSES]
            labels.write(values, 1)
    job = write_job(tmp_path / "job.toml", tmp_path / "prepared")
    sections = f'\n[acquire]\nurls = ["file:{tmp_path}/there/*.tif"]\n[prepare]\nimages = ["raw/*.tif"]\nworkers = 1\n'
    job.write_text(job.read_text() + sections)
    text = f'jobs = ["job.toml"]\nrecords = "{tmp_path}/records"\ndevice = "cpu"\n'
    (tmp_path / "flow.toml").write_text(text)
    return tmp_path / "flow.toml"


def _stages(out: str, event: str = "stage") -> list[str]:
    return [line["text"] for line in map(json.loads, out.splitlines()) if line["event"] == event]


def test_it_says_what_would_run_and_runs_nothing(workflow: Path, run_here: Run, unchanged: object) -> None:
    unchanged()  # type: ignore[operator]
    done = run_here("run", workflow, "--dry-run")
    assert (done.code, len(_stages(done.out))) == (0, 6), done.err
    assert all("would run, it has not run" in each for each in _stages(done.out))


def test_a_snakefile_is_written(workflow: Path, run_here: Run) -> None:
    done = run_here("run", workflow, "--snakemake", workflow.parent / "Snakefile")
    assert done.code == 0, done.err
    assert "outsize train" in (workflow.parent / "Snakefile").read_text()


def test_a_stage_that_is_none_is_refused(workflow: Path, run_here: Run) -> None:
    run_here("run", workflow, "--force", "trian").refused("--force names no stage", "train")


def test_a_stage_that_fails_is_one_line(workflow: Path, run_here: Run) -> None:
    (workflow.parent / "there" / "train-0.tif").unlink()
    text = (workflow.parent / "job.toml").read_text()
    (workflow.parent / "job.toml").write_text(text.replace("there/*.tif", "nowhere/*.tif"))
    run_here("run", workflow).refused("stage acquire failed", "stands for nothing")


@pytest.mark.long
def test_from_files_to_a_report_and_again_only_what_changed(workflow: Path, run: Run) -> None:
    done = run("run", workflow)
    assert done.code == 0, done.err
    assert len(_stages(done.out, "done")) == 6
    assert (workflow.parent / "run" / "report.html").is_file()
    timeline = json.loads((workflow.parent / "records" / "timeline.json").read_text())
    assert [each["name"] for each in timeline["stages"]][:3] == ["acquire", "prepare", "train"]
    assert "times as fast" in done.out
    again = run("run", workflow)
    assert (_stages(again.out, "done"), len(_stages(again.out, "skip"))) == ([], 6)
    job = workflow.parent / "job.toml"
    job.write_text(job.read_text().replace("lr = 1e-3", "lr = 2e-3"))
    changed = run("run", workflow)
    assert [each.partition(":")[0] for each in _stages(changed.out, "skip")] == ["acquire", "prepare"]
    assert len(_stages(changed.out, "done")) == 4
