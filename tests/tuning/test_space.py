"""What may vary: refused where a value is no job's; trials are jobs that vary nothing."""

from __future__ import annotations

from typing import Any

import pytest

from outsize.errors import JobError, ModelError
from outsize.job import Job, Range
from outsize.tuning.space import distributions, job_with, space_of, values_of


def _varying(job: Job, **tune: Any) -> Job:
    return job.model_copy(update={"tune": {key.replace("__", "."): value for key, value in tune.items()}})


def test_the_job_of_a_trial_has_its_values_and_varies_nothing(job: Job) -> None:
    tried = job_with(job, {"train.lr": 0.003, "model": {"name": "erfnet", "width": 0.5}}, "trial")
    assert (tried.train.lr, tried.model.name, tried.model.options) == (0.003, "erfnet", {"width": 0.5})
    assert tried.tune is None
    assert tried.data == job.data


def test_a_job_without_a_section_is_refused(job: Job) -> None:
    with pytest.raises(JobError, match=r"job\.toml does not say what may vary: found no section \[tune\]"):
        space_of(job.model_copy(update={"tune": None}), "job.toml")


@pytest.mark.parametrize(
    ("tune", "error", "says"),
    [
        (
            {"train__lr": Range(low=0, high=1)},
            JobError,
            "bad value for 'train.lr' in job.toml with train.lr = 0",
        ),
        ({"train__lrr": Range(low=1, high=2)}, JobError, "unknown key 'train.lrr'"),
        ({"train__batch": (4, "many")}, JobError, "train.batch = 'many'"),
        ({"model__name": ("unet", "unnet")}, ModelError, "did you mean 'unet'"),
        (
            {"model": ({"name": "unet"}, {"name": "unet", "depth": 3})},
            ModelError,
            "unknown option of model unet",
        ),
    ],
)
def test_a_value_that_is_no_jobs_is_refused_before_anything_runs(
    job: Job, tune: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says.replace(".", r"\.")):
        space_of(_varying(job, **tune), "job.toml")


def test_optuna_draws_numbers_texts_lists_and_tables(job: Job) -> None:
    import optuna

    space = _varying(
        job,
        train__lr=Range(low=1e-4, high=1e-2, log=True),
        model__width=Range(low=4, high=12, step=4),
        train__augment=(["flip"], ["flip", "turn"]),
        train__batch=(4, 8),
    ).tune
    assert space is not None
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = [values_of(study.ask(distributions(space)).params, space) for _ in range(40)]
    assert {each["model.width"] for each in seen} == {4, 8, 12}
    assert {tuple(each["train.augment"]) for each in seen} == {("flip",), ("flip", "turn")}
    assert {each["train.batch"] for each in seen} == {4, 8}
    assert all(1e-4 <= each["train.lr"] <= 1e-2 for each in seen)
    assert sum(each["train.lr"] < 1e-3 for each in seen) > 10  # half of them by their logarithm, a tenth else
