"""What differs between kinds of answer, as a record of functions for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.job import LimitsSection
from outsize.measure.facts import gather_facts, halo_of
from outsize.plan.facts import Facts, Machine
from outsize.strategies.compose import LossTerms
from outsize.tasks import instances, segment
from outsize.tiles.halo import Halo


@dataclass(frozen=True)
class Task:
    """The functions in which one task differs from another."""

    make_loss_terms: Callable[..., LossTerms]  # losses, statistics, weights
    count_terms: Callable[..., dict[str, float]]  # losses, labels, weights; maps and strides by name
    wanted_maps: Callable[[nn.Module, str], tuple[str, ...]]
    complete: Callable[[Batch, nn.Module, str, BandStatistics], Batch]
    loss_on_shapes: Callable[..., Callable[[nn.Module, Tensor], Tensor]]  # losses, most objects of a picture
    is_local: Callable[[str], bool]
    halo: Callable[..., Halo]  # model, bands, size of the largest scene -> what tiles of a scene overlap by
    on_shapes: Callable[[nn.Module], nn.Module] = lambda model: model  # predicts where there are only shapes
    decode: Callable[[Tensor, Tensor, Any], dict[str, Tensor]] | None = None  # where answers are per pixel
    tiles_train: bool = True  # a training window may be cut into tiles
    tiles_exactly: bool = True  # a scene in tiles is to have the answer of the whole
    score: str = "mean_iou"  # the larger the better, of an epoch
    score_name: str = "mean IoU"


TASKS: dict[str, Task] = {
    "segment": Task(
        segment.make_loss_terms,
        segment.count_terms,
        segment.wanted_maps,
        segment.complete,
        segment.loss_on_shapes,
        segment.is_local,
        halo_of,
        decode=segment.decode,
    ),
    "instances": Task(
        instances.make_loss_terms,
        instances.count_terms,
        instances.wanted_maps,
        instances.complete,
        instances.loss_on_shapes,
        instances.is_local,
        instances.halo,
        instances.OnShapes,
        tiles_train=False,
        tiles_exactly=False,
        score="mask_ap50",
        score_name="mask AP50",
    ),
}


def facts_for(
    name: str,
    model: nn.Module,
    num_bands: int,
    machine: Machine,
    *,
    bf16: bool,
    halo: Halo | None = None,
    largest_px: tuple[int, int] | None = None,
    **times: Any,
) -> Facts:
    """Gather the facts of a model of a task, for scenes of at most a size where that is known.

    `times` are rates of the machine and times of its operations.
    """
    task = TASKS[name]
    halo = halo or task.halo(model, num_bands, largest_px)
    return gather_facts(task.on_shapes(model), num_bands, machine, bf16=bf16, halo=halo, **times)


def limits_for(name: str, limits: LimitsSection) -> LimitsSection:
    """Return the limits of prediction: tiles of a task whose answers are never those of the whole need no leave."""
    return limits if TASKS[name].tiles_exactly else limits.model_copy(update={"allow_approximate": True})
