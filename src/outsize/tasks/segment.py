"""The task `segment`: one class for each pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.normalise import normalise
from outsize.data.statistics import BandStatistics
from outsize.losses import Weights, named_losses
from outsize.strategies.compose import LossTerms

NODATA = 255  # class id written where the scene has no valid pixel
CONFIDENCE_SCALE = 250  # confidence 0..1 is written as 0..250, 255 is nodata


def make_loss_terms(loss_names: str, statistics: BandStatistics, weights: Weights = None) -> LossTerms:
    """Return the function from model and batch to sums of loss terms; `loss_names` may be two joined by +."""
    losses = named_losses(loss_names, weights)

    def loss_terms(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        inputs = normalise(batch.images, batch.valid, statistics).contiguous(
            memory_format=torch.channels_last
        )
        logits = model(inputs)
        return {name: loss.sum(logits, batch.labels) for name, loss in losses.items()}

    return loss_terms


def loss_on_shapes(loss_names: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return a loss that takes the memory of the real one, for a model and a batch that are shapes alone.

    What is kept between steps must not be touched: it would be kept as a shape.
    """
    losses = named_losses(loss_names)

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        valid = torch.ones(images.shape[:1] + images.shape[2:], dtype=torch.bool)
        labels = torch.zeros(valid.shape, dtype=torch.uint8)
        inputs = torch.where(valid[:, None], (images.to(torch.float32) - 0.5) * 2.0, 0.0)
        logits = model(inputs.contiguous(memory_format=torch.channels_last))
        return torch.stack([each.sum(logits, labels) for each in losses.values()]).sum()

    return loss


def is_local(loss_names: str) -> bool:
    """Say whether each pixel's part of the losses depends on that pixel alone."""
    return all(loss.local for loss in named_losses(loss_names).values())


def count_terms(loss_names: str, labels: Tensor, weights: Weights = None) -> dict[str, float]:
    """Return the totals of a step; 1 where nothing is labelled, so that the sum 0 stays 0."""
    return {name: loss.count(labels) or 1.0 for name, loss in named_losses(loss_names, weights).items()}


@dataclass(frozen=True)
class Wanted:
    """What a prediction is to hold besides the class of each pixel."""

    class_values: tuple[int, ...]  # value written for class 0, 1, ...
    confidence: bool = False
    probabilities: bool = False


def decode(logits: Tensor, valid: Tensor, wanted: Wanted) -> dict[str, Tensor]:
    """Turn logits (sample, class, row, column) into bytes to be written; NODATA where pixels are not valid."""
    if not wanted.confidence and not wanted.probabilities:
        # the order of logits is that of probabilities: no softmax for the class alone
        return {"classes": _masked(_values(logits.argmax(1), wanted.class_values), valid)}
    shares = logits.float().softmax(1)
    largest, winner = shares.max(1)
    outputs = {"classes": _masked(_values(winner, wanted.class_values), valid)}
    if wanted.confidence:
        outputs["confidence"] = _masked((largest * CONFIDENCE_SCALE).round().to(torch.uint8), valid)
    if wanted.probabilities:
        scaled = (shares * CONFIDENCE_SCALE).round().to(torch.uint8)
        outputs["probabilities"] = _masked(scaled, valid[:, None])
    return outputs


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
