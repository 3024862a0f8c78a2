"""The study: begun once by however many workers, each trial taken by one, and gone on with where a worker is over."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outsize.errors import RunError
from outsize.files.ownership import mark
from outsize.job import Job
from outsize.runs import RunFolder
from outsize.tuning.space import space_of
from outsize.tuning.study import Study, open_study

_PRUNE_AFTER = 4


def _open(job: Job, storage: str | None = None) -> Study:
    run = RunFolder(Path(job.run))
    run.path.mkdir(exist_ok=True)
    mark(run.path)
    return open_study(job, space_of(job, "job"), run, storage)


def _finish(study: Study, score: float, num_trials: int = 100) -> int:
    with study.taking(num_trials) as taken:
        assert taken is not None
        study.tell(taken, "done", score)
        return taken.number


@pytest.mark.parametrize("database", [False, True])
def test_workers_that_begin_at_once_share_one_study(job: Job, tmp_path: Path, database: bool) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}" if database else None
    with ThreadPoolExecutor(4) as threads:
        studies = list(threads.map(lambda _: _open(job, storage), range(4)))
        numbers = list(threads.map(lambda study: _finish(study, 0.5), studies))
    assert sorted(numbers) == [0, 1, 2, 3]
    assert len(studies[0].trials()) == 4


@pytest.mark.long
@pytest.mark.parametrize("database", [False, True])
def test_processes_that_begin_at_once_all_live(job: Job, tmp_path: Path, database: bool) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}" if database else None
    code = (
        "import sys; from pathlib import Path; from outsize.job import load_job; from outsize.runs import RunFolder\n"
        "from outsize.tuning.space import space_of; from outsize.tuning.study import open_study\n"
        f"job = load_job(Path({str(tmp_path / 'job.toml')!r})); run = RunFolder(Path(job.run))\n"
        f"study = open_study(job, space_of(job, 'job'), run, {storage!r})\n"
        "for _ in range(3):\n with study.taking(12) as taken: study.tell(taken, 'done', 0.5)\n"
    )
    begun = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    errors = [each.communicate()[1].decode() for each in begun]
    assert [each.returncode for each in begun] == [0] * 4, errors
    assert len(_open(job, storage).trials()) == 12


def test_a_study_ends_at_its_number_and_goes_on_with_more(job: Job) -> None:
    study = _open(job)
    assert [_finish(study, 0.1, 2), _finish(study, 0.2, 2)] == [0, 1]
    with study.taking(2) as taken:
        assert taken is None
    assert _finish(_open(job), 0.3, 3) == 2


def test_the_same_seed_draws_the_same_trials(job: Job, tmp_path: Path) -> None:
    def drawn(name: str) -> list[object]:
        study, found = _open(job.model_copy(update={"run": str(tmp_path / name)})), []
        for score in (0.1, 0.3, 0.2):
            with study.taking(100) as taken:
                assert taken is not None
                found.append(taken.values)
                study.tell(taken, "done", score)
        return found

    assert drawn("one") == drawn("two")


def test_a_trial_of_a_worker_that_is_over_is_gone_on_with_and_another_ones_is_not(job: Job) -> None:
    study, other = _open(job), _open(job)
    with study.taking(9) as left:
        assert left is not None
    with ThreadPoolExecutor(1) as thread, other.taking(9) as again:
        assert again is not None
        assert (again.number, again.goes_on, again.values) == (left.number, True, left.values)

        def another() -> int:
            with study.taking(9) as taken:
                assert taken is not None
                return taken.number

        assert thread.submit(another).result() == 1
        other.tell(again, "done", 0.5)
    assert study.trials()[0].value == 0.5


def test_a_trial_below_the_median_is_pruned(job: Job) -> None:
    study = _open(job)
    for score in (0.4, 0.5, 0.6, 0.7):
        with study.taking(9) as taken:
            assert taken is not None
            assert not study.report(taken, 1, score)
            study.tell(taken, "done", score)
    for score, is_pruned in ((0.54, True), (0.58, False)):
        with study.taking(9) as taken:
            assert taken is not None
            assert study.report(taken, 1, score) is is_pruned
            study.tell(taken, "pruned" if is_pruned else "done", score, "why")
    assert study.trials()[_PRUNE_AFTER].user_attrs["why"] == "why"


def test_a_study_of_another_job_is_refused(job: Job) -> None:
    _open(job)
    other = job.model_copy(update={"seed": job.seed + 1})
    with pytest.raises(RunError, match="is of another job: found another job, or other ranges"):
        _open(other)


def test_what_mattered_is_told_once_enough_trials_tell(job: Job) -> None:
    study = _open(job)
    assert study.importance() == {}
    for _ in range(12):
        with study.taking(20) as taken:
            assert taken is not None
            study.tell(taken, "done", taken.values["train.lr"])
    found = study.importance()
    assert found.keys() == {"train.lr", "train.batch"}
    assert found["train.lr"] > found["train.batch"]


def test_a_trial_that_ended_while_it_was_looked_at_is_not_taken_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _open(job)
    with study.taking(2) as first:
        assert first is not None
        before = study.trials()
        study.tell(first, "done", 0.5)
    looks = iter([before])  # the first look was made before the end was told
    look = study.trials
    monkeypatch.setattr(study, "trials", lambda: next(looks, None) or look())
    with study.taking(2) as taken:
        assert taken is not None
        assert taken.number == 1
