"""The task `segment`: one class for each pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

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
from outsize.strategies.compose import LossTerms

NODATA = 255  # class id written where the scene has no valid pixel, or the model no answer
UNANSWERED = "unanswered"  # among the outputs of decode: how many pixels of each sample got no answer
CONFIDENCE_SCALE = 250  # confidence 0..1 is written as 0..250, 255 is nodata


def make_loss_terms(
    loss_names: str, statistics: BandStatistics, weights: Weights | WeightsByStride = None
) -> LossTerms:
    """Return the function from model and batch to sums of loss terms; `loss_names` may be two joined by +."""

    @cache
    def losses(stride: int) -> Mapping[str, Loss]:
        return named_losses(loss_names, of_stride(weights, stride))

    has_edges = _has_edges(loss_names)

    def loss_terms(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        maps = complete(batch, model, loss_names, statistics).maps
        answer = _answer(model, normalise(batch.images, batch.valid, statistics), maps, has_edges)
        return _sums(model, answer, labels_of(batch.targets), maps, losses)

    return loss_terms


def loss_on_shapes(loss_names: str, num_objects: int = 0) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001
    """Return a loss that takes the memory of the real one, for a model and a batch that are shapes alone.

    What is kept between steps must not be touched: it would be kept as a shape.
    """
    losses, has_edges = named_losses(loss_names), _has_edges(loss_names)

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        valid = torch.ones(images.shape[:1] + images.shape[2:], dtype=torch.bool)
        labels = torch.zeros(valid.shape, dtype=torch.uint8)
        maps = {name: torch.zeros_like(labels) for name in wanted_maps(model, loss_names)}
        answer = _answer(model, _normed_on_shapes(images, valid), maps, has_edges)
        return torch.stack(list(_sums(model, answer, labels, maps, lambda _: losses).values())).sum()

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
    """Return the totals of a step; 1 where nothing is labelled, so that the sum 0 stays 0.

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
            totals[_term(name, stride)] = loss.count(fewer, *given) or 1.0
    return totals


def _answer(
    model: nn.Module, inputs: Tensor, maps: Mapping[str, Tensor], has_edges: bool
) -> tuple[Tensor, ...]:
    """Run a model on normalised bands and the maps that it wants; return logits, and those of edges for their loss.

    Nobody but the model holds what goes into it: in bfloat16 the first layer keeps a copy, and the rest is let go.
    """
    names = input_maps(model)
    if names:
        inputs = with_maps(inputs, {name: maps[name] for name in names})
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if has_edges:
        _check_finds_edges(model)
        found = model(inputs, edges=True)
        return found.logits, found.edges
    return (model(inputs),)


def _sums(
    model: nn.Module,
    answer: tuple[Tensor, ...],
    labels: Tensor,
    maps: Mapping[str, Tensor],
    losses: Callable[[int], Mapping[str, Loss]],
) -> dict[str, Tensor]:
    """Add up each loss of what a model has answered; `losses` are those of a stride by which labels are reduced."""
    logits, stride = _of_two(answer[0]), 1
    shapes = (*answer[1:], maps[EDGES]) if len(answer) > 1 else ()
    if logits.shape[-2:] != labels.shape[-2:]:
        stride = label_stride(model)
        labels = reduced(labels, stride)
        logits = logits[..., : labels.shape[-2], : labels.shape[-1]]
    return {
        _term(name, stride): loss.sum(logits, labels, *(shapes if loss.edges else ()))
        for name, loss in losses(stride).items()
    }


def _of_two(logits: Tensor) -> Tensor:
    """Put a logit of zeros before an only one: the softmax of both is 1 - sigmoid and sigmoid, for every loss."""
    return torch.cat((torch.zeros_like(logits), logits), dim=1) if logits.shape[1] == 1 else logits


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


THRESHOLD = 0.5  # of a network of one logit: a pixel is of the second class where its probability is larger


@dataclass(frozen=True)
class Wanted:
    """What a prediction is to hold besides the class of each pixel."""

    class_values: tuple[int, ...]  # value written for class 0, 1, ...
    confidence: bool = False
    probabilities: bool = False
    threshold: float = THRESHOLD  # of one logit


def threshold_for(options: Mapping[str, object], asked: float | None) -> float:
    """Return the threshold of a model, built with these options; refuse one that nothing would be compared with."""
    if asked is None:
        return THRESHOLD
    if options.get("logits") != 1:
        need, remedy = "a network of one logit", "leave it out: the class of the largest logit is taken"
        raise ModelError(
            explain(f"threshold {asked} does not fit the model", "a logit per class", need, remedy)
        )
    if not 0 < asked < 1:
        need, remedy = "a probability between 0 and 1", "leave it out for 0.5"
        raise ModelError(explain("threshold is no probability", asked, need, remedy))
    return asked


def decode(logits: Tensor, valid: Tensor, wanted: Wanted) -> dict[str, Tensor]:
    """Turn logits (sample, class, row, column) into bytes to be written; NODATA where pixels are not valid.

    One logit is that of the second of two classes: its sigmoid is the probability, and a threshold decides.

    A pixel whose largest logit is NaN or infinite has no answer: it is NODATA, too, and counted per sample. NaN and
    +inf of any class show in the largest one, which is computed anyway; -inf of some classes only rules those out.
    """
    has_shares = wanted.confidence or wanted.probabilities
    # the order of logits is that of probabilities: no softmax for the class alone
    shares = _of_two(_at_least_single(logits)).softmax(1) if has_shares else None
    winning = None
    if logits.shape[1] == 1:
        winner = (logits[:, 0] > math.log(wanted.threshold / (1 - wanted.threshold))).long()
        answered = valid & logits[:, 0].isfinite()
    else:
        winning, winner = (logits if shares is None else shares).max(1)
        answered = valid & winning.isfinite()
    outputs = {"classes": _masked(_values(winner, wanted.class_values), answered)}
    if wanted.confidence and shares is not None:
        if winning is None:
            winning = shares.gather(1, winner[:, None])[:, 0]
        outputs["confidence"] = _masked((winning * CONFIDENCE_SCALE).round().to(torch.uint8), answered)
    if wanted.probabilities and shares is not None:
        scaled = (shares * CONFIDENCE_SCALE).round().to(torch.uint8)
        outputs["probabilities"] = _masked(scaled, answered[:, None])
    outputs[UNANSWERED] = (valid ^ answered).sum((1, 2), dtype=torch.int32)
    return outputs


def _at_least_single(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _values(winner: Tensor, class_values: tuple[int, ...]) -> Tensor:
    if class_values == tuple(range(len(class_values))):
        return winner.to(torch.uint8)
    return _table(class_values, winner.device)[winner]


@lru_cache(maxsize=16)
def _table(class_values: tuple[int, ...], device: torch.device) -> Tensor:
    """Keep the table on the device: copying it there anew would make the host wait for all queued work."""
    with torch.inference_mode(False):
        return torch.tensor(class_values, dtype=torch.uint8, device=device)


def _masked(values: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, values, NODATA)
