"""What classification learns: from pictures and their classes to sums and counts of the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.inputs import normalise
from outsize.data.pictures import ShuffledPictures
from outsize.data.sample import Samples, Targets
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters, OneClassEach
from outsize.errors import JobError, ModelError, explain
from outsize.losses import Loss, Weights, WeightsByStride, named_losses, of_stride
from outsize.progress import Reporter
from outsize.strategies.step import LossParts
from outsize.tasks.task import ToLearn
from outsize.tiles.halo import Halo, Obstacle, Reach
from outsize.units import sides_of


def open_samples(given: ToLearn, reporter: Reporter) -> tuple[Samples, NDArray[np.int64] | None]:  # noqa: ARG001 (as all tasks)
    """Open what pictures are drawn from, and count the classes of each where classes shall be weighed."""
    section = given.section
    if section.rare_share > 0 or section.empty_share < 1:
        found, need = "train.rare_share or empty_share", "windows of scenes, which pictures are not"
        raise JobError(explain("pictures are not drawn by what is in them", found, need, "leave it out"))
    pictures = ShuffledPictures(
        given.scenes,
        given.table,
        tile_px=section.tile_px,
        augmentations=section.augment,
        statistics=given.statistics,
        seed=given.seed,
    )
    if section.class_weights == "none":
        return pictures, None
    return pictures, np.bincount(pictures.class_ids, minlength=given.num_classes)[None, : given.num_classes]


def make_loss_terms(
    loss_names: str, statistics: BandStatistics, weights: Weights | WeightsByStride = None
) -> LossParts:
    """Return what makes inputs of a batch and sums of loss terms of the answer; `loss_names` may be two joined by +."""
    losses = _losses(loss_names, of_stride(weights, 1))

    def inputs(_: nn.Module, batch: Batch) -> tuple[Tensor]:
        pictures = normalise(batch.images, batch.valid, statistics)
        return (pictures.contiguous(memory_format=torch.channels_last),)

    def sums(model: nn.Module, answer: Any, batch: Batch) -> Mapping[str, Tensor]:
        logits, classes = _only_logits(model, answer), classes_of(batch.targets)
        return {name: loss.sum(logits, classes) for name, loss in losses.items()}

    return LossParts(inputs, sums)


def loss_on_shapes(loss_names: str, num_objects: int = 0) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001 (as all tasks)
    """Return a loss that takes the memory of the real one, for a model and a batch that are shapes alone."""
    losses = _losses(loss_names)

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        planes = images.contiguous(memory_format=torch.contiguous_format)
        answer = logits_of(model, (planes.to(torch.float32) - 0.5) * 2.0)
        classes = torch.zeros(len(images), dtype=torch.uint8)
        return torch.stack([each.sum(answer, classes) for each in losses.values()]).sum()

    return loss


def count_terms(
    loss_names: str,
    targets: Targets,
    weights: Weights | WeightsByStride = None,
    *,
    maps: Mapping[str, Tensor] | None = None,  # noqa: ARG001 (as all tasks)
    strides: Sequence[int] = (1,),  # noqa: ARG001
) -> dict[str, float]:
    """Return the totals of a step: the pictures whose class is known, or what these weigh; at least 1."""
    classes = classes_of(targets)
    losses = _losses(loss_names, of_stride(weights, 1))
    return {name: loss.count(classes) or 1.0 for name, loss in losses.items()}


def complete(batch: Batch, model: nn.Module, loss_names: str, statistics: BandStatistics) -> Batch:  # noqa: ARG001
    """Return a batch with a class for each picture; of made-up pixels it is that of the first one."""
    if isinstance(batch.targets, OneClassEach):
        return batch
    assert isinstance(batch.targets, ClassRasters), type(batch.targets)
    return replace(batch, targets=OneClassEach(batch.targets.labels[:, 0, 0].contiguous()))


def classes_of(targets: Targets) -> Tensor:
    """Return the class of each picture."""
    assert isinstance(targets, OneClassEach), type(targets)
    return targets.classes


def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits (picture, class) of normalised pictures; refuse a model that answers otherwise."""
    return _only_logits(model, model(inputs.contiguous(memory_format=torch.channels_last)))


def _only_logits(model: nn.Module, answer: Any) -> Tensor:
    if not isinstance(answer, Tensor) or answer.dim() != 2:
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        found = f"{type(model).__name__}, which answers with {shape}"
        need = "a model that gives each picture a logit for each class: digits"
        raise ModelError(explain("the task is classify, but the model is not", found, need, "set model.name"))
    return answer


def picture_px_of(model: nn.Module) -> tuple[int, int]:
    """Return the size of the pictures that a model takes."""
    size = getattr(model, "picture_px", None)
    if size is None:
        need = "a model of pictures of one size: digits"
        found = type(model).__name__
        raise ModelError(explain("the task is classify, but the model is not", found, need, "set model.name"))
    return sides_of(size)


def seen_px(model: nn.Module, largest_px: tuple[int, int]) -> tuple[int, int]:  # noqa: ARG001 (as infer.cutting)
    """Return the size of the pictures that a model is given, however large they were and however many are in a file."""
    return picture_px_of(model)


def halo(
    model: nn.Module,  # noqa: ARG001 (as measure.facts.halo_of)
    num_bands: int,  # noqa: ARG001
    largest_px: tuple[int, int] | None = None,  # noqa: ARG001
) -> Halo:
    """Return that nothing overlaps: a picture is looked at as a whole, and has one answer."""
    why = "a picture has one class as a whole"
    return Halo(Reach(0, 0), Reach(0, 0), 1, (Obstacle("", "classes", why),))


class PicturesOnShapes(nn.Module):
    """Takes a window as the pictures that it has room for: what pixels take does not depend on their number."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the answers to all pictures of a window."""
        (height, width), (rows, cols) = picture_px_of(self.model), images.shape[-2:]
        pictures = max(1, rows // height) * max(1, cols // width) * len(images)
        answer: Tensor = self.model(images.new_empty((pictures, images.shape[1], height, width)))
        return answer


def _losses(names: str, weights: Weights = None) -> Mapping[str, Loss]:
    """Return the losses of a job; refuse those that are about more than one pixel, as regions and edges."""
    losses = named_losses(names, weights)
    wrong = [name for name, loss in losses.items() if not loss.local or loss.edges]
    if wrong:
        need, remedy = "a loss of single answers: cross_entropy, focal", "set train.loss"
        raise JobError(
            explain("train.loss is not for pictures with one class", ", ".join(wrong), need, remedy)
        )
    return losses
