"""The graph of a job's model as it trains, traced on pixels that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outsize.errors import PlanError, explain
from outsize.job import Job
from outsize.units import sides_of

if TYPE_CHECKING:
    from torch import nn


def traced_for(job: Job, model: nn.Module, num_bands: int, num_samples: int) -> tuple[tuple[Any, ...], Any]:
    """Trace a job's model as it trains, on pixels that are made up; refuse one that cannot be."""
    import torch

    from outsize.data.statistics import BandStatistics
    from outsize.measure.graphs import export_training
    from outsize.strategies.step import LossParts
    from outsize.tasks import task_of
    from outsize.train.made_up import make_up_batch

    task, loss = task_of(job.task), job.train.loss
    plain = BandStatistics((0.0,) * num_bands, (1.0,) * num_bands)
    parts = task.make_loss_terms(loss, plain, None)
    if not isinstance(parts, LossParts):
        found = f"{type(model).__name__}, which its losses run in several passes"
        need, remedy = "a model that is called once, as those of classes are", "leave --stages out"
        raise PlanError(explain("this model cannot be cut into stages", found, need, remedy))
    shape = (num_samples, num_bands, *sides_of(job.train.tile_px))
    with torch.random.fork_rng([]):
        batch = make_up_batch(model, task, loss, shape, len(job.data.classes))
        inputs = parts.inputs(model, batch)
        was_training = model.training
        try:
            return inputs, export_training(model.train(), inputs)
        finally:
            model.train(was_training)
