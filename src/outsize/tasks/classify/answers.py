"""Runs a model over pictures, many at once: the probability of each class for each picture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from outsize.data.feeding import prefetch
from outsize.data.inputs import normalise
from outsize.data.pictures import Pictures, labelled_pictures
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.infer.stream import Settings
from outsize.metrics.confusion import Scores, confusion
from outsize.plan.plan import Tiling
from outsize.tasks.classify.terms import logits_of, picture_px_of
from outsize.tasks.task import HeldBack

_MOST_AT_ONCE = 4096

Shares = NDArray[np.float32]  # picture, class


def num_at_once(model: nn.Module, tiling: Tiling, settings: Settings) -> int:
    """Return how many pictures have as many pixels as the tiles that were planned to be in memory at once."""
    height, width = picture_px_of(model)
    return min(_MOST_AT_ONCE, max(1, settings.batch * tiling.core_px**2 // (height * width)))


def answer_all(
    model: nn.Module,
    pictures: Pictures,
    statistics: BandStatistics,
    settings: Settings,
    num: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Shares:
    """Return the probabilities of all pictures, `num` of which are computed at once; NaN where there is no answer."""

    def read(first: int) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
        samples = [pictures.read(index) for index in range(first, min(first + num, len(pictures)))]
        return np.stack([each.image for each in samples]), np.stack([each.valid for each in samples])

    narrow = torch.autocast(settings.device.type, torch.bfloat16) if settings.bf16 else nullcontext()
    found: list[Shares] = []
    with torch.inference_mode(), narrow:
        starts = range(0, len(pictures), num)
        for images, valid in prefetch(read, starts, num_threads=settings.num_threads, num_ahead=2):
            inputs = normalise(
                torch.from_numpy(images).to(settings.device),
                torch.from_numpy(valid).to(settings.device),
                statistics,
            )
            logits = logits_of(model, inputs.to(settings.dtype))
            found.append(logits.float().softmax(1).cpu().numpy())
            advance(len(images))
    return np.concatenate(found)


def classes_in(shares: Shares) -> NDArray[np.uint8]:
    """Return the likeliest class of each picture; IGNORE where a model had no answer."""
    answered = np.isfinite(shares).all(1)
    return np.where(answered, np.nan_to_num(shares).argmax(1), IGNORE).astype(np.uint8)


def scores_of(names: tuple[str, ...], truth: NDArray[np.uint8], found: NDArray[np.uint8]) -> Scores:
    """Count the pictures of each class by what they were taken for; those without an answer are wrong."""
    num = len(names)
    unanswered = np.bincount(truth[found >= num], minlength=IGNORE + 1)[:num]
    return Scores(names, confusion(truth, found, num), unanswered)


def validate(model: nn.Module, held: HeldBack) -> dict[str, float]:
    """Return the share of pictures that are held back whose class a model finds."""
    card = held.card
    pictures = labelled_pictures(held.scenes, held.table, picture_px_of(model))
    num = num_at_once(model, held.tiling, held.settings)
    found = classes_in(answer_all(model, pictures, card.statistics, held.settings, num))
    pictures.close()
    scores = scores_of(tuple(each.name for each in card.classes), pictures.class_ids, found)
    return {"accuracy": scores.share_right, "mean_f1": scores.mean_f1}
