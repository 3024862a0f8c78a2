"""The four losses of FastBox: what each cell is to find, and each loss as the sum of its cells.

A picture's share is a sum of its cells over the number of all cells of the whole picture, which is known before the
step: batches, ranks and tiles of a picture add up.

    boxes of a picture -> assign -> class and box of each cell --.
    picture -> FastBox -> answers of each cell ------------------+-> sums
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data.targets import BoxLists
from outsize.losses.loss import precise
from outsize.models.fastbox import CELL_PX, CellAnswers, cell_centres

TERMS = ("confidence", "box", "delta_confidence", "delta_box")

_REACH_PX = 1.8 * CELL_PX  # of a cell's centre from that of its object
_SHRINK_PX = 2  # a side, of what is neutral
_NEAR = 0.04  # square of a centre's error, in sides of the object, up to which the second look is to confirm
_MOST_SQUARE = 100.0  # px^2 of a side's error that a second look can mend
_WEIGHTS = {"confidence": 1.0, "box": 0.1, "delta_confidence": 0.1, "delta_box": 0.1 * 0.03}


@dataclass(frozen=True)
class CellTargets:
    """What each cell (picture, row, column) is to find."""

    labels: Tensor  # 0: nothing
    boxes: Tensor  # ..., 4: as FastBox has them; of the object, where there is one
    is_learnt: Tensor  # whether its class is learnt
    objects: Tensor  # the object's place among those of its picture


@torch.no_grad()
def assign(targets: BoxLists, rows: int, cols: int, rule: str = "nearest") -> CellTargets:
    """Give each cell one of the objects that it overlaps, if its centre is not far.

    Rule "nearest": the object with the nearest centre, of those the smallest, of those the first; its class is learnt
    even where something neutral is as well. Rule "first", as published: the first in the order of the file, and
    nothing of the class where anything neutral is.
    """
    sides, labels = targets.sides, targets.labels
    centres = cell_centres(sides.new_empty(1, rows, cols, 0))
    low = torch.maximum(sides[:, :, None, None, :2], centres - CELL_PX / 2)
    high = torch.minimum(sides[:, :, None, None, 2:], centres + CELL_PX / 2)
    meets = (high > low).all(-1) & (labels > 0)[:, :, None, None]  # picture, object, row, column
    middles, extents = (sides[..., :2] + sides[..., 2:]) / 2, sides[..., 2:] - sides[..., :2]
    offsets = middles[:, :, None, None] - centres
    if rule == "nearest":
        far = torch.where(meets, offsets.square().sum(-1), torch.inf)
        meets = meets & (far == far.amin(1, keepdim=True))
        order = extents.prod(-1).argsort(dim=1, stable=True)
    else:
        order = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
    most = labels.shape[1]
    turn = torch.where(meets.take_along_dim(order[:, :, None, None], 1), _counted(order), most).amin(1)
    objects = order.take_along_dim(turn.clamp(max=most - 1).flatten(1), 1).unflatten(1, (rows, cols))
    own = _of_cells(torch.cat((middles, extents), -1), objects)
    boxes = torch.cat((own[..., :2] - centres, own[..., 2:]), -1)
    inside = _in_core(targets, centres)
    has_one = (turn < most) & (boxes[..., :2].abs() < _REACH_PX).all(-1) & inside
    neutral = _neutral_cells(sides, labels, rows, cols)
    is_learnt = inside & ((~neutral | has_one) if rule == "nearest" else ~neutral)
    own_labels = _of_cells(labels[..., None], objects)[..., 0]
    return CellTargets(torch.where(has_one, own_labels, 0), boxes, is_learnt, objects)


def sums(answers: CellAnswers, targets: BoxLists, rule: str = "nearest") -> dict[str, Tensor]:
    """Return each loss, added up over the cells of all pictures, over the number of cells that a picture has."""
    rows, cols = answers.boxes.shape[1:3]
    wanted = assign(targets, rows, cols, rule)
    boxes, deltas = precise(answers.boxes), precise(answers.deltas)
    own, has_one = wanted.boxes.to(boxes.dtype), wanted.labels > 0
    apart = own - boxes
    with torch.no_grad():
        errors = apart[..., :2] / own[..., 2:].clamp(min=1)
        confirmed = torch.where(errors.square().sum(-1) < _NEAR, wanted.labels, 0)
    mended = (apart - deltas).square().clamp(max=_MOST_SQUARE)
    every = {
        "confidence": _of_class(answers.logits, wanted.labels, wanted.is_learnt),
        "box": torch.where(has_one, apart.abs().sum(-1), 0.0),
        "delta_confidence": _of_class(answers.delta_logits, confirmed, wanted.is_learnt),
        "delta_box": torch.where(has_one, mended.sum(-1), 0.0),
    }
    num_cells = -(-targets.size[0] // CELL_PX) * -(-targets.size[1] // CELL_PX)
    return {name: each.sum() * (_WEIGHTS[name] / num_cells) for name, each in every.items()}


def _of_class(logits: Tensor, labels: Tensor, is_learnt: Tensor) -> Tensor:
    each = F.cross_entropy(precise(logits).movedim(-1, 1), labels, reduction="none")
    return torch.where(is_learnt, each, 0.0)


def _of_cells(values: Tensor, objects: Tensor) -> Tensor:
    """Take the values (picture, object, number) of each cell's object."""
    rows = objects.flatten(1)[..., None].expand(-1, -1, values.shape[-1])
    own: Tensor = values.gather(1, rows).unflatten(1, tuple(objects.shape[1:]))
    return own


def _counted(order: Tensor) -> Tensor:
    return torch.arange(order.shape[1], device=order.device)[:, None, None]


def _in_core(targets: BoxLists, centres: Tensor) -> Tensor:
    core = targets.core
    across, down = centres.unbind(-1)
    return (down >= core.row) & (down < core.row_end) & (across >= core.col) & (across < core.col_end)


def _neutral_cells(sides: Tensor, labels: Tensor, rows: int, cols: int) -> Tensor:
    """Say which cells (picture, row, column) something neutral reaches into."""
    first = ((sides[..., :2] + _SHRINK_PX) / CELL_PX).floor()
    last = ((sides[..., 2:] - _SHRINK_PX) / CELL_PX).floor()
    across = torch.arange(cols, device=sides.device)
    down = torch.arange(rows, device=sides.device)
    in_col = (across >= first[..., 0, None]) & (across <= last[..., 0, None])
    in_row = (down >= first[..., 1, None]) & (down <= last[..., 1, None])
    found = in_row[..., :, None] & in_col[..., None, :] & (labels < 0)[..., None, None]
    return found.any(1)
