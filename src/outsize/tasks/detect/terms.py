"""What is learnt of boxes: a detector by its kind, its losses and the counts that they are divided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.inputs import normalise
from outsize.data.statistics import BandStatistics
from outsize.data.targets import BoxList, BoxLists
from outsize.errors import ModelError, explain
from outsize.losses import Weights, dense, fastbox, instances
from outsize.models.dense import STRIDES, DenseDetector
from outsize.models.fastbox import CELL_PX, FastBox
from outsize.models.fasterrcnn import COARSEST_PX, FasterRCNN
from outsize.models.unsteady import ON_SHAPES, REAL, Unsteady
from outsize.strategies.compose import LossTerms
from outsize.tasks.task import by_picture
from outsize.tiles.halo import Halo, Obstacle, Reach

Detector = FastBox | DenseDetector | FasterRCNN
TERMS = tuple(dict.fromkeys((*fastbox.TERMS, *dense.TERMS, *instances.BOX_TERMS)))
count_terms = by_picture(TERMS)

_MADE_UP = 16  # boxes in a picture that is not real


def make_loss_terms(loss_names: str, statistics: BandStatistics, weights: Weights = None) -> LossTerms:  # noqa: ARG001 (as segment)
    """Return the function from model and batch to sums of the detector's losses."""

    def loss_terms(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        inputs = normalise(batch.images, batch.valid, statistics)
        assert isinstance(batch.targets, BoxLists), type(batch.targets)
        return _sums(detector(model), inputs, batch.targets, batch.keys)

    return loss_terms


def loss_on_shapes(loss_names: str, num_objects: int = 0) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001 (as segment)
    """Return a loss that takes the memory of the real one, for a model and pictures that are shapes alone."""

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        inputs = (images.contiguous(memory_format=torch.contiguous_format).to(torch.float32) - 0.5) * 2.0
        targets = _made_up(len(images), images.shape[-2], images.shape[-1])
        return torch.stack(list(_sums(detector(model), inputs, targets, (), ON_SHAPES).values())).sum()

    return loss


def complete(batch: Batch, model: nn.Module, loss_names: str, statistics: BandStatistics) -> Batch:  # noqa: ARG001
    """Return a batch with boxes; where whoever made it gave none, as for made-up pixels, some are made up."""
    if isinstance(batch.targets, BoxLists):
        return batch
    num, _, height, width = batch.images.shape
    return replace(batch, targets=_made_up(num, height, width))


def halo(
    model: nn.Module,
    num_bands: int,  # noqa: ARG001 (as measure.facts.halo_of)
    largest_px: tuple[int, int] | None = None,  # noqa: ARG001
) -> Halo:
    """Return what tiles overlap by: an object of the model's `overlap_px` lies as a whole in one of them."""
    own = detector(model)
    coarsest_px = COARSEST_PX if isinstance(own, FasterRCNN) else STRIDES[-1]
    stride_px = CELL_PX if isinstance(own, FastBox) else coarsest_px
    half_px = -(-own.overlap_px // 2)
    reach = Reach(half_px, half_px).aligned(stride_px)
    why = "boxes are found in overlapping tiles and settled, not in the scene as a whole"
    return Halo(reach, reach, stride_px, (Obstacle("", "boxes", why),))


class DetectorOnShapes(nn.Module):
    """Finds as many boxes as there may be, for a model and pictures that are shapes alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return what the model finds."""
        own = detector(self.model)
        found = own.find(self.model(images), (images.shape[-2], images.shape[-1]), ON_SHAPES)
        return [each["boxes"] for each in found]


def detector(model: nn.Module) -> Detector:
    """Return a model that finds boxes; refuse others."""
    if not isinstance(model, Detector):
        needed = "a model that finds boxes: fastbox, or one of torchvision:"
        raise ModelError(
            explain(
                "the task is detect, but the model is not", type(model).__name__, needed, "set model.name"
            )
        )
    return model


def _sums(
    model: Detector, inputs: Tensor, targets: BoxLists, keys: Sequence[int], unsteady: Unsteady = REAL
) -> dict[str, Tensor]:
    inputs = inputs.to(next(model.parameters()).dtype).contiguous(memory_format=torch.channels_last)
    if isinstance(model, FastBox):
        return fastbox.sums(model(inputs), targets, model.assignment)
    if isinstance(model, DenseDetector):
        return dense.sums(model, model(inputs), targets)
    objects = instances.of_boxes(targets, keys)

    def choose(proposals: Tensor) -> tuple[Tensor, instances.Drawn]:
        return instances.draw_boxes(proposals, objects, model.rois_per_image)

    answers = model(inputs, choose, unsteady)
    anchors = instances.draw_anchors(answers.anchors, objects)
    return instances.box_sums(answers, objects, anchors, answers.chosen)


def _made_up(num: int, height: int, width: int) -> BoxLists:
    """Return a table of boxes of one size at random places."""
    rng = np.random.default_rng(0)
    side = max(1, min(height, width) // 4)
    lists = []
    for _ in range(num):
        corners = rng.uniform((0, 0), (max(1, width - side), max(1, height - side)), size=(_MADE_UP, 2))
        sides = np.concatenate((corners, corners + side), 1).astype(np.float32)
        lists.append(BoxList((height, width), sides, np.zeros(_MADE_UP, np.int64)))
    return lists[0].stack(lists)
