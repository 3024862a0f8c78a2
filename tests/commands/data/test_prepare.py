"""`outsize prepare`: the same files whoever makes them, which training reads; what is wrong is one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.commands.conftest import Run, contents
from tests.conftest import write_job

from outsize.accounts import read_accounts
from outsize.data.synthetic.scenes import draw_scene
from outsize.job import load_job
from outsize.runs import RunFolder

_SECTION = """
[prepare]
images = ["raw/scene-*.tif"]
labels = "{stem}_labels.tif"
"""


@pytest.fixture
def raw_job(tmp_path: Path) -> Path:
    """A job with six small raw scenes."""
    for number in range(6):
        draw_scene(tmp_path / "raw", f"scene-{number}", 64, 96, seed=number, vectors=False)
    job = write_job(tmp_path / "job.toml", tmp_path / "prepared")
    text = (
        job.read_text()
        .replace("/train-*", "/scene-[0-3]")
        .replace("/val-*", "/scene-4")
        .replace("/test-*", "/scene-5")
    )
    job.write_text(text + _SECTION)
    return job


def test_one_process_and_two_make_the_same_files_and_check_reads_them(raw_job: Path, run_here: Run) -> None:
    for num in (1, 2):
        done = run_here("prepare", raw_job, "--workers", str(num), "--set", f"prepare.to=by-{num}")
        assert done.code == 0, done.err
    one, two = contents(raw_job.parent / "by-1"), contents(raw_job.parent / "by-2")
    assert one == two
    assert len([name for name in one if name.endswith(".tif")]) == 12
    (raw_job.parent / "by-1").rename(raw_job.parent / "prepared")
    again = run_here("prepare", raw_job)
    assert "0 prepared, 6 there before" in again.out
    assert {each.verb for each in read_accounts(RunFolder(Path(load_job(raw_job).run)))} == {"prepare"}
    # the scenes are too small for all classes to be there
    assert "prepared/scene-0" not in run_here("check", raw_job).err


def test_a_scene_that_is_cut_is_set_aside_and_the_others_are_there(raw_job: Path, run_here: Run) -> None:
    bad = raw_job.parent / "raw" / "scene-3.tif"
    bad.write_bytes(bad.read_bytes()[:-5000])
    asked = ("prepare", raw_job, "--workers", "1")
    run_here(*asked).refused("not all files could be prepared", "1 set aside", "scene-3")
    assert len([*(raw_job.parent / "prepared").glob("scene-?.tif")]) == 5
    done = run_here(*asked, "--set", "prepare.max_bad_share=0.2")
    assert (done.code, "5 there before, 1 set aside" in done.out) == (0, True), done.err


def test_a_full_disk_is_one_line_and_repeated_it_goes_on(raw_job: Path, run: Run) -> None:
    run("prepare", raw_job, "--workers", "2", limit_bytes=20_000).refused("prepared", "free space")
    assert not [*(raw_job.parent).glob("prepared/*.tif")]
    done = run("prepare", raw_job, "--workers", "2")
    assert done.code == 0, done.err
    assert sorted(path.name for path in (raw_job.parent / "prepared").glob(".*")) == []


def test_a_scheduler_that_does_not_answer_is_named(raw_job: Path, run_here: Run, unchanged: object) -> None:
    pytest.importorskip("distributed")
    with socket.socket() as silent:  # it takes calls and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        changes = ("--set", "prepare.timeout_s=0.5")
        unchanged()  # type: ignore[operator]
        run_here("prepare", raw_job, "--scheduler", address, *changes).refused(address, "no answer in 0.5 s")


def test_a_job_without_the_section_is_refused(job_path: Path, run_here: Run) -> None:
    run_here("prepare", job_path).refused("has no section [prepare]")
