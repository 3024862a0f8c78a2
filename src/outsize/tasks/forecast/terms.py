"""What forecasting learns: from frames and those that follow to sums and counts of the losses.

Where frames carried on by optical flow are among the bands, the model answers with what is to be added to them:

    bands      -90 min ... now | flow +10 min ... flow +100 min
                               '------------- base ------------'  + answer  =  the frames that come
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.frames import SCALE, NumberGrids, to_levels
from outsize.data.inputs import normalise
from outsize.data.sample import Samples, Targets
from outsize.data.sampling import RainWindows
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import JobError, ModelError, explain
from outsize.losses import Loss, Weights, WeightsByStride, named_losses
from outsize.losses.loss import precise
from outsize.measure.tracing import answer_on_shapes
from outsize.progress import Reporter
from outsize.strategies.step import LossParts
from outsize.tasks.task import ToLearn

JUDGED_AT = 1.0  # mm/h: an epoch is judged by its CSI, and windows are drawn where so much rain will come
_LOSSES = ("rain", "plain_rain")


def open_samples(given: ToLearn, reporter: Reporter) -> tuple[Samples, NDArray[np.int64] | None]:  # noqa: ARG001 (as all tasks)
    """Open what windows of frames are drawn from."""
    section = given.section
    if section.class_weights != "none" or section.empty_share < 1:
        found, need = "train.class_weights or empty_share", "frames have no classes"
        raise JobError(explain("leads are not weighed", found, need, "leave it out, or set train.rare_share"))
    windows = RainWindows(
        given.scenes,
        tile_px=section.tile_px,
        augmentations=section.augment,
        wet_share=section.rare_share,
        wet_level=int(to_levels(np.array(JUDGED_AT))),
        seed=given.seed,
    )
    return windows, None


def make_loss_terms(
    loss_names: str,
    statistics: BandStatistics,
    weights: Weights | WeightsByStride = None,  # noqa: ARG001 (as all tasks)
) -> LossParts:
    """Return what makes inputs of a batch and sums of loss terms of the answer; `loss_names` may be two joined by +."""
    losses = _losses(loss_names)

    def inputs(_: nn.Module, batch: Batch) -> tuple[Tensor]:
        frames = normalise(batch.images, batch.valid, statistics)
        return (frames.contiguous(memory_format=torch.channels_last),)

    def sums(model: nn.Module, answer: Any, batch: Batch) -> Mapping[str, Tensor]:
        grids = grids_of(batch.targets)
        found = _only_grids(model, answer, grids.numbers)
        if grids.base is not None:
            found = precise(found) + base_of(batch.images, grids.base, grids.numbers.shape[1])
        return {name: loss.sum(found, grids.numbers) for name, loss in losses.items()}

    return LossParts(inputs, sums)


def base_of(images: Tensor, first: int, num_leads: int) -> Tensor:
    """Return the frames that an answer is added to, in units of the logarithm; where they are unknown, no rain."""
    return images[:, first : first + num_leads].clamp(min=0).to(torch.float32) / SCALE


def loss_on_shapes(loss_names: str, num_objects: int = 0) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001 (as all tasks)
    """Return a loss that takes the memory of the real one, for a model and a batch that are shapes alone."""
    losses = _losses(loss_names)

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        answer = model(_normed_on_shapes(images))
        # no memory of their own: those of a batch are there before
        numbers = torch.zeros((), dtype=torch.int16).expand(answer.shape)
        return torch.stack([each.sum(answer, numbers) for each in losses.values()]).sum()

    return loss


def _normed_on_shapes(images: Tensor) -> Tensor:
    planes = images.contiguous(memory_format=torch.contiguous_format)
    return ((planes.to(torch.float32) - 0.5) * 2.0).contiguous(memory_format=torch.channels_last)


def count_terms(
    loss_names: str,
    targets: Targets,
    weights: Weights | WeightsByStride = None,  # noqa: ARG001 (as all tasks)
    *,
    maps: Mapping[str, Tensor] | None = None,  # noqa: ARG001
    strides: Sequence[int] = (1,),  # noqa: ARG001
) -> dict[str, float]:
    """Return the totals of a step: what the known pixels of all leads weigh; at least 1."""
    numbers = grids_of(targets).numbers
    return {name: loss.count(numbers) for name, loss in _losses(loss_names).items()}


def complete(batch: Batch, model: nn.Module, loss_names: str, statistics: BandStatistics) -> Batch:  # noqa: ARG001
    """Return a batch with numbers for each lead; of made-up pixels they are made of the classes drawn for them."""
    if isinstance(batch.targets, NumberGrids):
        return batch
    assert isinstance(batch.targets, ClassRasters), type(batch.targets)
    labels, num_leads = batch.targets.labels, _num_leads(model, batch.images)
    levels = torch.where(labels == 255, -1000, labels.to(torch.int16) * 100)
    numbers = levels[:, None].expand(-1, num_leads, -1, -1).contiguous().to(torch.int16)
    return replace(batch, targets=NumberGrids(numbers, ("",) * len(numbers)))


def is_local(loss_names: str) -> bool:
    """Say that each pixel's part of the losses depends on that pixel alone."""
    return all(loss.local for loss in _losses(loss_names).values())


def grids_of(targets: Targets) -> NumberGrids:
    """Return the numbers of all leads."""
    assert isinstance(targets, NumberGrids), type(targets)
    return targets


def _num_leads(model: nn.Module, images: Tensor) -> int:
    """Return how many leads a model answers with: on shapes alone, so that nothing is computed."""
    return int(answer_on_shapes(model, (1, *images.shape[1:]))[0].shape[1])


def _only_grids(model: nn.Module, answer: Any, numbers: Tensor) -> Tensor:
    if not isinstance(answer, Tensor) or answer.shape != numbers.shape:
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        found = f"{type(model).__name__}, which answers with {shape}"
        need = f"a model that answers with {tuple(numbers.shape)}: unet, convlstm"
        raise ModelError(explain("the task is forecast, but the model is not", found, need, "set model.name"))
    return answer


def _losses(names: str) -> Mapping[str, Loss]:
    wrong = [name for name in names.split("+") if name not in _LOSSES]
    if wrong:
        need = f"a loss of numbers: {', '.join(_LOSSES)}"
        raise JobError(explain("train.loss is not for frames", ", ".join(wrong), need, "set train.loss"))
    return named_losses(names)
