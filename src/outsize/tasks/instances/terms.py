"""The task `instances`: objects, each with a class, a box and a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.inputs import normalise
from outsize.data.object import Object
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters, ObjectLists
from outsize.errors import ModelError, explain
from outsize.losses import Weights
from outsize.losses.instances import TERMS, Drawn, ObjectTensors, draw_anchors, draw_boxes, sums
from outsize.models.maskrcnn import Answers, MaskRCNN
from outsize.models.unsteady import ON_SHAPES, REAL, Unsteady
from outsize.strategies.step import LossParts
from outsize.tasks.task import by_picture
from outsize.tiles.halo import Halo, Obstacle, Reach
from outsize.tiles.window import Window

count_terms = by_picture(TERMS)

_STRIDE_PX = 64  # of the coarsest level that anchors stand on
_MADE_UP = 16  # objects in a picture that is not real


def make_loss_terms(loss_names: str, statistics: BandStatistics, weights: Weights = None) -> LossParts:  # noqa: ARG001 (as segment)
    """Return what makes inputs of a batch and sums of the five losses of the answers."""

    def inputs(model: nn.Module, batch: Batch) -> tuple[Any, ...]:
        images = normalise(batch.images, batch.valid, statistics)
        targets = to_targets(_objects_of(batch), batch.keys or (0,) * len(images), images.device)
        return _inputs(_finder(model), images, targets, REAL)

    return LossParts(inputs, lambda _, answers, __: _sums(answers))


def loss_on_shapes(loss_names: str, num_objects: int = _MADE_UP) -> Callable[[nn.Module, Tensor], Tensor]:  # noqa: ARG001 (as segment)
    """Return a loss that takes the memory of the real one with so many objects in each picture.

    The model is one of shapes alone: as many proposals as there may be, boxes shared out evenly among levels.
    """

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        valid = torch.ones(images.shape[:1] + images.shape[2:], dtype=torch.bool)
        inputs = torch.where(valid[:, None], (images.to(torch.float32) - 0.5) * 2.0, 0.0)
        targets = _on_shapes(len(images), max(1, num_objects))
        answers = model(*_inputs(_finder(model), inputs, targets, ON_SHAPES))
        return torch.stack(list(_sums(answers).values())).sum()

    return loss


def complete(batch: Batch, model: nn.Module, loss_names: str, statistics: BandStatistics) -> Batch:  # noqa: ARG001
    """Return a batch with objects; where whoever made it gave none, as for made-up pixels, some are made up."""
    if isinstance(batch.targets, ObjectLists):
        return batch
    height, width = batch.images.shape[-2:]
    rng = np.random.default_rng(0)
    made = tuple(_made_up(rng, height, width) for _ in range(len(batch.images)))
    assert isinstance(batch.targets, ClassRasters)
    return replace(batch, targets=ObjectLists(batch.targets, made))


def _objects_of(batch: Batch) -> tuple[tuple[Object, ...], ...]:
    assert isinstance(batch.targets, ObjectLists), type(batch.targets)
    return batch.targets.objects


def halo(
    model: nn.Module,
    num_bands: int,  # noqa: ARG001 (as measure.facts.halo_of)
    largest_px: tuple[int, int] | None = None,  # noqa: ARG001
) -> Halo:
    """Return what tiles overlap by: an object of the model's `overlap_px` lies as a whole in one of them."""
    half_px = -(-_finder(model).overlap_px // 2)
    reach = Reach(half_px, half_px).aligned(_STRIDE_PX)
    why = "objects are found in overlapping tiles and joined, not in the scene as a whole"
    return Halo(reach, reach, _STRIDE_PX, (Obstacle("", "objects", why),))


class OnShapes(nn.Module):
    """Finds as many objects as there may be, for a model and pictures that are shapes alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return what the model finds."""
        found: list[dict[str, Tensor]] = self.model(images, unsteady=ON_SHAPES)
        return [each["masks"][:, 0, 0] for each in found]


def to_targets(
    objects: Sequence[Sequence[Object]], keys: Sequence[int], device: torch.device
) -> ObjectTensors:
    """Bring the objects of pictures to the device: numbers in one copy, masks one after the other in another."""
    every = [each for own in objects for each in own]
    starts = np.cumsum([0, *(each.mask.size for each in every)])[: len(every)]
    rows = [
        (*each.box, each.class_id + 1, each.clipped, start) for each, start in zip(every, starts, strict=True)
    ]
    counts = tuple(len(own) for own in objects)
    most, none = max(counts), len(every)
    firsts = np.cumsum((0, *counts))
    table = np.full((len(objects), most), none)
    for number, count in enumerate(counts):
        table[number, :count] = np.arange(firsts[number], firsts[number] + count)
    known = np.array([*rows, (0,) * 7], np.int64)
    parts = (known.ravel(), np.array(keys, np.int64), table.ravel().astype(np.int64))
    sent = _sent(torch.from_numpy(np.concatenate(parts)), device).split([part.size for part in parts])
    numbers = sent[0].view(-1, 7)
    cells = np.concatenate([*(each.mask.ravel() for each in every), np.zeros(1, np.bool_)])
    return ObjectTensors(
        boxes=numbers[:, :4].to(torch.float32),
        labels=numbers[:, 4],
        clipped=numbers[:, 5] > 0,
        starts=numbers[:, 6],
        cells=_sent(torch.from_numpy(cells.view(np.uint8)), device),
        keys=sent[1],
        table=sent[2].view(len(objects), most),
        counts=counts,
    )


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor so that the host need not wait for all work queued before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _on_shapes(num_pictures: int, num_objects: int) -> ObjectTensors:
    """Return as many objects in each picture, of which only the number is known."""
    num = num_pictures * num_objects + 1
    numbers = torch.zeros(num, dtype=torch.int64)
    table = torch.zeros(num_pictures, num_objects, dtype=torch.int64)
    cells = torch.zeros(num * 16 * 16, dtype=torch.uint8)
    keys = torch.zeros(num_pictures, dtype=torch.int64)
    counts = (num_objects,) * num_pictures
    return ObjectTensors(torch.zeros(num, 4), numbers, numbers > 0, numbers, cells, keys, table, counts)


def _inputs(model: MaskRCNN, images: Tensor, targets: ObjectTensors, unsteady: Unsteady) -> tuple[Any, ...]:
    """Return what a model is called with: pictures, and who chooses boxes to learn from, for that one knows objects."""

    def choose(proposals: Tensor) -> tuple[Tensor, tuple[ObjectTensors, Drawn]]:
        boxes, drawn = draw_boxes(proposals, targets, model.rois_per_image)
        return boxes, (targets, drawn)

    dtype = next(model.parameters()).dtype
    return images.to(dtype).contiguous(memory_format=torch.channels_last), choose, unsteady


def _sums(answers: Answers) -> dict[str, Tensor]:
    assert isinstance(answers, Answers)
    targets, drawn = answers.chosen
    return sums(answers, targets, draw_anchors(answers.anchors, targets), drawn)


def _finder(model: nn.Module) -> MaskRCNN:
    if not isinstance(model, MaskRCNN):
        needed = "a model that finds objects: maskrcnn"
        raise ModelError(
            explain(
                "the task is instances, but the model is not", type(model).__name__, needed, "set model.name"
            )
        )
    return model


def _made_up(rng: np.random.Generator, height: int, width: int) -> tuple[Object, ...]:
    side = max(1, min(height, width) // 8)
    places = rng.integers((height - side + 1, width - side + 1), size=(_MADE_UP, 2)).tolist()
    return tuple(
        Object(0, Window(row, col, side, side), np.ones((side, side), np.bool_)) for row, col in places
    )
