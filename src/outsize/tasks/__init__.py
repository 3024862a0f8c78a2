"""What differs between kinds of answer, as a record of functions for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.losses import Weights
from outsize.strategies.compose import LossTerms
from outsize.tasks import segment


@dataclass(frozen=True)
class Task:
    """The functions in which one task differs from another."""

    make_loss_terms: Callable[[str, BandStatistics, Weights], LossTerms]
    count_terms: Callable[..., dict[str, float]]  # losses, labels, weights; maps and strides by name
    wanted_maps: Callable[[nn.Module, str], tuple[str, ...]]
    complete: Callable[[Batch, nn.Module, str, BandStatistics], Batch]
    loss_on_shapes: Callable[[str], Callable[[nn.Module, Tensor], Tensor]]
    is_local: Callable[[str], bool]
    decode: Callable[[Tensor, Tensor, Any], dict[str, Tensor]]


TASKS: dict[str, Task] = {
    "segment": Task(
        segment.make_loss_terms,
        segment.count_terms,
        segment.wanted_maps,
        segment.complete,
        segment.loss_on_shapes,
        segment.is_local,
        segment.decode,
    )
}
