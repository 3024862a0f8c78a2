"""Trials from the first to the last: done, pruned, not fitting, failed; small folders, a table and the best job."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outsize.errors import OutputError
from outsize.files.ownership import mark
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.report.tuned import Tuned, read_tuned
from outsize.runs import RunFolder
from outsize.tuning import trial
from outsize.tuning import work as module
from outsize.tuning.space import space_of
from outsize.tuning.study import Study, open_study
from outsize.tuning.work import work_through

_DO = """
(run / "checkpoints").mkdir(exist_ok=True)
for name in ("state", "best", "last"):
    (run / "checkpoints" / f"{name}.safetensors").touch()
"""


@pytest.fixture
def study(job: Job) -> Study:
    run = RunFolder(Path(job.run))
    run.path.mkdir()
    mark(run.path)
    return open_study(job, space_of(job, "job"), run, None)


def _work(study: Study, job: Job, num: int, devices: tuple[str, ...] = ("cpu",)) -> Tuned:
    work_through(study, job, space_of(job, "job"), num, devices, Reporter())
    return read_tuned(study.folder / "trials.json")


def test_the_best_job_and_its_weights_are_left(study: Study, job: Job, trains: Callable[[str], None]) -> None:
    trains(_DO + "epoch(1, batch / 100)\nepoch(2, batch / 200)\n")
    tuned = _work(study, job, 4)
    assert {each["state"] for each in tuned.rows} == {"done"}
    assert tuned.best is not None
    assert (tuned.best["score"], tuned.best["values"]["train.batch"]) == (0.08, 8)
    best = load_job(study.folder / "best.toml")
    assert (best.train.batch, best.train.lr) == (8, tuned.best["values"]["train.lr"])
    assert (best.tune, best.run) == (None, f"{job.run}-best")
    left = {path.parent.parent.name for path in study.folder.rglob("best.safetensors")}
    assert left == {f"{tuned.best['number']:04}"}
    assert not list(study.folder.rglob("state.safetensors"))


def test_a_trial_that_crashes_is_recorded_with_its_line_and_the_study_goes_on(
    study: Study, job: Job, trains: Callable[[str], None]
) -> None:
    trains(
        "if run.name == '0000': os.kill(os.getpid(), 9)\nif run.name == '0001': raise ValueError('boom')\n"
    )
    trains_then = "if run.name == '0002': sys.exit(0)\nepoch(1, 0.5)\n"
    before = module.run_trial.__globals__["_START"]
    module.run_trial.__globals__["_START"] = before + trains_then
    tuned = _work(study, job, 4)
    why = {each["number"]: (each["state"], each["why"]) for each in tuned.rows}
    assert why[0] == ("failed", "ended by signal SIGKILL")
    assert why[1] == ("failed", "ValueError: boom")
    assert why[2] == ("failed", "no epoch has a score")
    assert why[3][0] == "done"


def test_a_trial_that_does_not_fit_is_pruned_with_its_figures(
    study: Study, job: Job, trains: Callable[[str], None]
) -> None:
    line = "PlanError: 4 windows do not fit: found 5.1 GiB, needed 4.0 GiB; set train.batch = 2"
    account = {
        "schema": 1,
        "verb": "train",
        "began_s": 1.0,
        "seconds": 1.0,
        "cpu_s": 1.0,
        "activities": [],
        "outcome": "failed",
        "error": line,
    }
    trains(f"(run / 'accounts.jsonl').write_text({json.dumps(account)!r} + '\\n')\nsys.exit(2)\n")
    tuned = _work(study, job, 1)
    assert [(each["state"], each["why"]) for each in tuned.rows] == [
        ("pruned", "does not fit: 5.1 GiB, of 4.0 GiB")
    ]
    assert tuned.best is None
    assert not (study.folder / "best.toml").exists()


def test_a_trial_worse_than_half_of_the_others_is_ended(
    study: Study, job: Job, trains: Callable[[str], None]
) -> None:
    trains(
        "number = int(run.name)\nepoch(1, 0.5 + number / 100 if number < 4 else 0.1)\n"
        "while number >= 4: time.sleep(0.05)\n"
    )
    tuned = _work(study, job, 5)
    assert [each["state"] for each in tuned.rows] == ["done"] * 4 + ["pruned"]
    assert tuned.rows[4]["why"] == "worse than half of the others after 1 epoch"


def test_equal_trials_are_trained_once(study: Study, job: Job, trains: Callable[[str], None]) -> None:
    few = job.model_copy(update={"tune": {"train.batch": (4, 8)}})
    study._space = space_of(few, "job")
    trains("(run / 'trained').touch()\nepoch(1, batch / 100)\n")
    tuned = _work(study, few, 6)
    assert len(list(study.folder.rglob("trained"))) <= 2
    for each in tuned.rows:
        assert each["score"] == each["values"]["train.batch"] / 100


def test_several_workers_share_the_trials(study: Study, job: Job, trains: Callable[[str], None]) -> None:
    trains("(run / 'words').write_text(' '.join(sys.argv))\nepoch(1, 0.5)\n")
    tuned = _work(study, job, 6, ("cuda:0", "cuda:1"))
    assert [each["number"] for each in tuned.rows] == list(range(6))
    devices = {path.read_text().split()[-2] for path in study.folder.rglob("words")}
    assert devices <= {"cuda:0", "cuda:1"}


def test_the_error_of_one_worker_ends_all_and_keeps_the_trials(
    study: Study, job: Job, trains: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trains("epoch(1, 0.5)\nwhile int(run.name) > 0: time.sleep(0.05)\n")
    noted = threading.Event()

    def full(*_: Any) -> None:
        noted.set()
        raise OutputError("cannot write trials.json: found No space left on device")

    monkeypatch.setattr(module, "write_outcome", full)
    with pytest.raises(OutputError, match="No space left"):
        _work(study, job, 2, ("cpu", "cpu"))
    assert noted.is_set()
    states = [each.state.name for each in study.trials()]
    assert states == ["COMPLETE", "RUNNING"]  # to be gone on with


def test_the_data_is_looked_through_once(study: Study, job: Job, trains: Callable[[str], None]) -> None:
    trains("known = run / 'data.json'\nepoch(1, float(known.exists()))\nknown.touch()\n")
    assert [each["score"] for each in _work(study, job, 3).rows] == [0.0, 1.0, 1.0]


def test_a_trial_that_fails_on_a_full_disk_is_gone_on_with_when_there_is_room(
    study: Study, job: Job, trains: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trains(
        "if '--overwrite' in sys.argv and not (run / 'again').exists():\n"
        "    (run / 'again').touch(); sys.exit(2)\nepoch(1, 0.5)\n"
    )
    with monkeypatch.context() as full:
        full.setattr(trial, "_LEAST_FREE_BYTES", 1 << 62)
        with pytest.raises(OutputError, match=r"ended on a full disk: found .* free"):
            _work(study, job, 1)
    assert [each.state.name for each in study.trials()] == ["RUNNING"]
    assert [(each["state"], each["score"]) for each in _work(study, job, 1).rows] == [("done", 0.5)]
