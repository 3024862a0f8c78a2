"""From logits to what a map holds: the class of each pixel, its confidence, the probability of every class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from outsize.errors import ModelError, explain
from outsize.infer.stream import NODATA, UNANSWERED
from outsize.tasks.segment.logits import of_two

CONFIDENCE_SCALE = 250  # confidence 0..1 is written as 0..250, 255 is nodata
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
    shares = of_two(_at_least_single(logits)).softmax(1) if has_shares else None
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
    """Keep the table on the device: copying it there again would make the host wait for all queued work."""
    with torch.inference_mode(False):
        return torch.tensor(class_values, dtype=torch.uint8, device=device)


def _masked(values: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, values, NODATA)
