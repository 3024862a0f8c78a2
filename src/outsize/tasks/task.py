"""The record of a task: all that a verb would otherwise have to ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.card import Card
from outsize.data.batch import Batch
from outsize.data.sample import Samples, Targets
from outsize.data.scenes import LabelledScene
from outsize.data.statistics import BandStatistics
from outsize.files.ownership import Consent
from outsize.infer.cutting import Cutting
from outsize.infer.ready import Ready
from outsize.infer.stream import Settings
from outsize.job import Job, PredictSection, TrainSection
from outsize.plan.plan import Tiling
from outsize.progress import Reporter
from outsize.raster.reading import SceneInfo
from outsize.runs import RunFolder
from outsize.strategies.compose import LossTerms
from outsize.tasks.info import TaskInfo
from outsize.tasks.subjects import Subject


class SceneFiles(Protocol):
    """What a prediction leaves of one scene, and where."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, first the one that predict.json calls the map."""

    @property
    def grows(self) -> bool:
        """Whether it is one for many scenes: what it says of others stays."""

    @property
    def consent(self) -> Consent:
        """What the user allows to be written over."""


@dataclass(frozen=True)
class ToLearn:
    """Labelled scenes that a training learns from, and how it draws from them."""

    scenes: Sequence[LabelledScene]
    table: NDArray[np.uint8]  # from values of labels to classes
    num_classes: int
    statistics: BandStatistics
    section: TrainSection
    seed: int


@dataclass(frozen=True)
class HeldBack:
    """Labelled scenes that an epoch is judged by, and how to run a model on them."""

    scenes: Sequence[LabelledScene]
    table: NDArray[np.uint8]  # from values of labels to classes
    card: Card
    tiling: Tiling
    settings: Settings


Runs = tuple[RunFolder, RunFolder]
Jobs = tuple[Job, Job]


@dataclass(frozen=True)
class Task:
    """The functions in which one task differs from another."""

    info: TaskInfo

    # what is learnt
    make_loss_terms: Callable[..., LossTerms]  # losses, statistics, weights
    count_terms: Callable[..., dict[str, float]]  # losses, labels, weights; maps and strides by name
    complete: Callable[[Batch, nn.Module, str, BandStatistics], Batch]
    loss_on_shapes: Callable[..., Callable[[nn.Module, Tensor], Tensor]]  # losses, most objects of a picture

    # what is drawn, and where somebody asks for it what there is of each class (scene, class)
    samples: Callable[[ToLearn, Reporter], tuple[Samples, NDArray[np.int64] | None]]

    # an epoch judged
    validate: Callable[[nn.Module, HeldBack], Mapping[str, Any]]

    # scenes
    cutting: Cutting
    products: Callable[..., SceneFiles]  # path without ending, section, scene; inside and consent by name
    predict: Callable[
        [Path, Ready, Sequence[tuple[SceneInfo, Any]], PredictSection, Reporter], list[dict[str, Any]]
    ]  # run, ..., what predict.json lists
    predict_one: Callable[..., dict[str, Any]]  # ready, scene, paths of results, section, consent

    # scores
    evaluate: Callable[[RunFolder, Job, str, Sequence[Subject], Reporter], dict[str, Any]]
    score_lines: Callable[[str, Mapping[str, Any], RunFolder], list[str]]  # split, scores, run
    compare: Callable[[Runs, Jobs, Sequence[Subject], Reporter], dict[str, Any]]
    comparison_lines: Callable[[Mapping[str, Any], Path], list[str]]  # what was compared, its file

    # maps that samples have besides their bands; whether each pixel's part of the losses hangs on that pixel alone
    wanted_maps: Callable[[nn.Module, str], tuple[str, ...]] = lambda *_: ()
    is_local: Callable[[str], bool] = lambda _: False
    spreads: bool = False  # ranks may share the tiles of a scene: `predict` follows the world of its settings
    tiles_train: bool = True  # a training window may be cut into tiles
    records: bool = True  # its steps call the same kernels on the same shapes, so that they may be captured


def by_picture(terms: Sequence[str]) -> Callable[..., dict[str, float]]:
    """Return what counts the pictures of a step for each term: each picture's shares are over a count of its own."""

    def count_terms(_: str, targets: Targets, *_weights: object, **_maps: object) -> dict[str, float]:
        return dict.fromkeys(terms, float(len(targets)))

    return count_terms
