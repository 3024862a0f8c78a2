"""Border rows from the neighbours above and below, and their gradients back home.

rank r-1   | . . . . . a a |                       forward:  a goes down, b goes up
rank r               | a a [ own rows ] b b |      backward: the gradients of a and b go home, and are added
rank r+1                            | b b . . . |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.errors import PlanError, explain
from outsize.strategies.spatial.rows import Rows


class Need(NamedTuple):
    """How many of the neighbours' rows an operation looks at above and below: the same number on every rank."""

    top: int
    bottom: int


def with_borders(inputs: Tensor, need: Need, rows: Rows) -> Tensor:
    """Return a tensor (sample, channel, row, column) and its neighbours' rows; the picture's ends have none."""
    if need == (0, 0):
        return inputs
    if max(need) > inputs.shape[2]:
        found, needed = (
            f"{inputs.shape[2]} rows on a rank",
            f"at least {max(need)}, which its neighbour looks at",
        )
        raise PlanError(explain("rows are too few", found, needed, "use fewer ranks, or a larger picture"))
    around: Tensor = _Borders.apply(inputs, need, rows)
    return around


class _Borders(torch.autograd.Function):
    """Puts the neighbours' rows around the own ones."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, need: Need, rows: Rows) -> Tensor:
        num = inputs.shape[2]
        ctx.need, ctx.rows, ctx.num = need, rows, num
        above, below = _exchange(inputs[:, :, : need.bottom], inputs[:, :, num - need.top :], need, rows)
        return torch.cat((above, inputs, below), dim=2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        need, rows, num = ctx.need, ctx.rows, ctx.num
        top = 0 if rows.at_top else need.top
        # home comes what this rank had sent: its first rows from above, its last ones from below
        above, below = _exchange(grad[:, :, :top], grad[:, :, top + num :], Need(need.bottom, need.top), rows)
        own = grad[:, :, top : top + num].clone()
        own[:, :, : above.shape[2]] += above
        own[:, :, num - below.shape[2] :] += below
        return own, None, None


def _exchange(up: Tensor, down: Tensor, come: Need, rows: Rows) -> tuple[Tensor, Tensor]:
    """Send rows up and down, and return so many that come from above and below; none where the picture ends."""
    rank = dist.get_rank()
    sides = ((rank - 1, up, come.top, rows.at_top), (rank + 1, down, come.bottom, rows.at_bottom))
    found, works = [], []
    for peer, sent, num_come, ends in sides:
        found.append(sent.new_empty((*sent.shape[:2], 0 if ends else num_come, sent.shape[3])))
        if not ends and sent.shape[2]:
            works.append(dist.P2POp(dist.isend, sent.contiguous(), peer))
        if found[-1].shape[2]:
            works.append(dist.P2POp(dist.irecv, found[-1], peer))
    for work in dist.batch_isend_irecv(works) if works else ():
        work.wait()
    return found[0], found[1]
