"""What segmentation learns: from pixels and their classes to sums and counts of the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch, reduced
from outsize.data.inputs import EDGES, MapMaker, class_edges, gains_to_bytes, normalise, with_maps
from outsize.data.sample import Targets
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import ModelError, explain
from outsize.losses import Loss, Weights, WeightsByStride, named_losses, of_stride
from outsize.models import input_maps, label_stride
from outsize.strategies.step import LossParts
from outsize.tasks.segment.logits import of_two


def make_loss_terms(
    loss_names: str, statistics: BandStatistics, weights: Weights | WeightsByStride = None
) -> LossParts:
    """Return what makes inputs of a batch and sums of loss terms of the answer; `loss_names` may be two joined by +."""

    @cache
    def losses(stride: int) -> Mapping[str, Loss]:
        return named_losses(loss_names, of_stride(weights, stride))

    has_edges = _has_edges(loss_names)

    def inputs(model: nn.Module, batch: Batch) -> tuple[Any, ...]:
        maps = complete(batch, model, loss_names, statistics).maps
        return _inputs(model, normalise(batch.images, batch.valid, statistics), maps, has_edges)

    def sums(model: nn.Module, answer: Any, batch: Batch) -> Mapping[str, Tensor]:
        edges = complete(batch, model, loss_names, statistics).maps[EDGES] if has_edges else None
        return _sums(model, answer, labels_of(batch.targets), edges, losses)

    return LossParts(inputs, sums)


def loss_on_shapes(loss_names: str, num_objects: int = 0) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001
    """Return a loss that takes the memory of the real one, for a model and a batch that are shapes alone.

    What is kept between steps must not be touched: it would be kept as a shape.
    """
    losses, has_edges = named_losses(loss_names), _has_edges(loss_names)

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        valid = torch.ones(images.shape[:1] + images.shape[2:], dtype=torch.bool)
        labels = torch.zeros(valid.shape, dtype=torch.uint8)
        maps = {name: torch.zeros_like(labels) for name in wanted_maps(model, loss_names)}
        answer = model(*_inputs(model, _normed_on_shapes(images, valid), maps, has_edges))
        return torch.stack(
            list(_sums(model, answer, labels, maps.get(EDGES), lambda _: losses).values())
        ).sum()

    return loss


def _normed_on_shapes(images: Tensor, valid: Tensor) -> Tensor:
    # as a batch comes from the host: plane after plane
    planes = images.contiguous(memory_format=torch.contiguous_format)
    return torch.where(valid[:, None], (planes.to(torch.float32) - 0.5) * 2.0, 0.0)


def wanted_maps(model: nn.Module, loss_names: str) -> tuple[str, ...]:
    """Name the maps that samples must have: those of the model's input, and edges where a loss is about them."""
    return (*input_maps(model), *((EDGES,) if _has_edges(loss_names) else ()))


def _has_edges(loss_names: str) -> bool:
    return any(loss.edges for loss in named_losses(loss_names).values())


def complete(batch: Batch, model: nn.Module, loss_names: str, statistics: BandStatistics) -> Batch:
    """Return a batch with all maps; those that whoever made it left out, as for made-up pixels, are made now."""
    missing = tuple(name for name in wanted_maps(model, loss_names) if name not in batch.maps)
    if not missing:
        return batch
    gains = gains_to_bytes(str(batch.images.dtype).removeprefix("torch."), statistics)
    made = MapMaker(missing, gains)(batch.images, batch.valid, batch.targets)
    return replace(batch, maps={**batch.maps, **made})


def is_local(loss_names: str) -> bool:
    """Say whether each pixel's part of the losses depends on that pixel alone."""
    return all(loss.local for loss in named_losses(loss_names).values())


def labels_of(targets: Targets) -> Tensor:
    """Return the labels of pixels (sample, row, column)."""
    assert isinstance(targets, ClassRasters), type(targets)
    return targets.labels


def count_terms(
    loss_names: str,
    targets: Targets,
    weights: Weights | WeightsByStride = None,
    *,
    maps: Mapping[str, Tensor] | None = None,
    strides: Sequence[int] = (1,),
) -> dict[str, float]:
    """Return the totals of a step, or of a part of it that adds up with others.

    There are totals for every stride by which phases of the training reduce labels: a batch is made before it is known
    in which phase it will be used.
    """
    totals: dict[str, float] = {}
    labels = labels_of(targets)
    edges = (maps or {}).get(EDGES)
    for stride in strides:
        fewer = reduced(labels, stride)
        for name, loss in named_losses(loss_names, of_stride(weights, stride)).items():
            given = (class_edges(fewer) if edges is None else reduced(edges, stride),) if loss.edges else ()
            totals[_term(name, stride)] = loss.count(fewer, *given)
    return totals


def _inputs(model: nn.Module, images: Tensor, maps: Mapping[str, Tensor], has_edges: bool) -> tuple[Any, ...]:
    """Return what a model is called with: normalised bands with the maps that it wants, and whether to find edges."""
    names = input_maps(model)
    if names:
        images = with_maps(images, {name: maps[name] for name in names})
    images = images.contiguous(memory_format=torch.channels_last)
    if not has_edges:
        return (images,)
    _check_finds_edges(model)
    return images, True


def _sums(
    model: nn.Module,
    answer: Any,
    labels: Tensor,
    edges: Tensor | None,
    losses: Callable[[int], Mapping[str, Loss]],
) -> dict[str, Tensor]:
    """Add up each loss of what a model has answered; `losses` are those of a stride by which labels are reduced."""
    shapes: tuple[Tensor, ...] = ()
    if edges is not None:
        answer, shapes = answer.logits, (answer.edges, edges)
    logits, stride = of_two(answer), 1
    if logits.shape[-2:] != labels.shape[-2:]:
        stride = label_stride(model)
        labels = reduced(labels, stride)
        logits = logits[..., : labels.shape[-2], : labels.shape[-1]]
    return {
        _term(name, stride): loss.sum(logits, labels, *(shapes if loss.edges else ()))
        for name, loss in losses(stride).items()
    }


def _term(name: str, stride: int) -> str:
    return name if stride == 1 else f"{name}/{stride}"


def _check_finds_edges(model: nn.Module) -> None:
    if not getattr(model, "finds_edges", False):
        needed, remedy = (
            "a model that finds edges, such as gscnn",
            "set model.name = 'gscnn' or another train.loss",
        )
        raise ModelError(
            explain("the loss is about edges, but the model is not", type(model).__name__, needed, remedy)
        )
