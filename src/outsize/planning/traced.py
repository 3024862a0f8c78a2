"""The graph of a job's model as it trains, traced on pixels that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outsize.errors import PlanError, explain
from outsize.job import Job
from outsize.units import sides_of

if TYPE_CHECKING:
    from torch import nn

_MOST_MADE_UP = 2**26  # numbers of a batch


def traced_for(job: Job, model: nn.Module, num_bands: int, num_samples: int) -> tuple[tuple[Any, ...], Any]:
    """Trace a job's model as it trains, on pixels that are made up; refuse one that cannot be.

    Of large pictures the inputs are shapes alone, made from those of smaller ones: eight of 8192 px take 8 GiB.
    """
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
    sides_px = sides_of(job.train.tile_px)
    times = _times_smaller(num_samples * num_bands, *sides_px)
    height, width = (side_px // times for side_px in sides_px)
    shape = num_samples, num_bands, height, width
    with torch.random.fork_rng([]):
        batch = make_up_batch(model, task, loss, shape, len(job.data.classes))
        inputs = _enlarged(parts.inputs(model, batch), times)
        was_training = model.training
        try:
            return inputs, export_training(model.train(), inputs)
        finally:
            model.train(was_training)


def _times_smaller(num_maps: int, height: int, width: int) -> int:
    """Return by how much pictures are made up smaller, along each side: a power of two."""
    times = 1
    while num_maps * (height // times) * (width // times) > _MOST_MADE_UP:
        if height % (2 * times) or width % (2 * times):
            break
        times *= 2
    return times


def _enlarged(inputs: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    """Return maps so many times as high and wide, as shapes alone; anything else as it is."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    if times == 1:
        return inputs
    mode = FakeTensorMode()

    def large(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 3:
            return value
        *others, height, width = value.shape
        return torch.zeros(*others, height * times, width * times, dtype=value.dtype)

    with mode:
        return tuple(map(large, inputs))
