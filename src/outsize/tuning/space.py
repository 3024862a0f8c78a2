"""What a job says may vary, as Optuna draws it; the job of a trial with the values that were drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outsize.errors import JobError, explain
from outsize.job import Choices, Job, Range, check_job
from outsize.job.models import refuse_unknown_model, refuse_unknown_options

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = Mapping[str, Range | Choices]
Values = Mapping[str, Any]


def space_of(job: Job, name: str) -> Space:
    """Return what may vary in a job; refuse one that says nothing, or of which a value would be no job's."""
    if not job.tune:
        need = "ranges or choices for some of its keys"
        remedy = "add a section [tune], for example train.lr = {low = 1e-4, high = 1e-2, log = true}"
        raise JobError(explain(f"job {name} does not say what may vary", "no section [tune]", need, remedy))
    space: Space = job.tune
    for key, varied in space.items():
        for value in _ends(varied):
            tried = job_with(job, {key: value}, f"{name} with {key} = {value!r}")
            refuse_unknown_model(tried.model.name)
            refuse_unknown_options(tried.model.name, tried.model.options)
    return space


def job_with(job: Job, values: Values, name: str) -> Job:
    """Return the job of a trial: that of the tuning with other values, and nothing to vary."""
    tree = job.model_dump(mode="json", exclude_none=True, exclude={"tune"})
    for key, value in values.items():
        *sections, last = key.split(".")
        inner = tree
        for section in sections:
            inner = inner[section]
        inner[last] = value
    return check_job(tree, name)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return what Optuna draws from."""
    return {key: _distribution(varied) for key, varied in space.items()}


def values_of(drawn: Values, space: Space) -> dict[str, Any]:
    """Return what Optuna drew as values of a job."""
    return {key: _value(drawn[key], varied) for key, varied in space.items()}


def _distribution(varied: Range | Choices) -> BaseDistribution:
    from optuna import distributions as of

    if not isinstance(varied, Range):
        return of.CategoricalDistribution([_as_choice(each) for each in varied])
    low, high, step = varied.low, varied.high, varied.step
    if varied.is_whole:
        return of.IntDistribution(int(low), int(high), log=varied.log, step=int(step or 1))
    return of.FloatDistribution(low, high, log=varied.log, step=step)


def _as_choice(value: Any) -> Any:
    """Optuna keeps numbers and texts; of lists and tables their JSON."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _value(drawn: Any, varied: Range | Choices) -> Any:
    if isinstance(varied, Range):
        return drawn
    return next(each for each in varied if _as_choice(each) == drawn)


def _ends(varied: Range | Choices) -> tuple[Any, ...]:
    return (varied.low, varied.high) if isinstance(varied, Range) else varied
