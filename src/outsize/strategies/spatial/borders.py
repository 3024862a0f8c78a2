"""Border rows from the neighbours above and below, and their gradients back home; columns likewise.

rank r-1   | . . . . . a a |                       forward:  a goes down, b goes up
rank r               | a a [ own rows ] b b |      backward: the gradients of a and b go home, and are added
rank r+1                            | b b . . . |

While they are on their way, what looks at own rows alone is computed:

    forward    leave --> the middle --> arrive --> the two ends
    backward   leave <-- the middle <-- arrive <-- the two ends      autograd goes back in this order

So nothing is copied but the ends, and no rank waits that has something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outsize.errors import PlanError, explain
from outsize.strategies.spatial.shard import ROWS, Message, Shard, Work


class Need(NamedTuple):
    """How many of the neighbours' rows an operation looks at before and after: the same number on every rank."""

    before: int
    after: int


@dataclass
class Crossing:
    """Borders of one operation on their way along one axis: there in forward, home in backward."""

    shard: Shard
    axis: int
    need: Need
    works: Sequence[Work] = ()
    come: list[Tensor] = field(default_factory=list)

    def begin(self, up: Tensor, down: Tensor, need: Need) -> None:
        """Send to the neighbours before and after, and be ready for what comes from them."""
        side, like = self.shard.side(self.axis), [*up.shape]
        messages, self.come = [], []
        for peer, out, num in ((side.before, up, need.before), (side.after, down, need.after)):
            like[self.axis] = 0 if peer is None else num
            self.come.append(up.new_empty(like))
            if peer is not None:
                messages.append(Message(peer, out, self.come[-1]))
        self.works = self.shard.carry(messages)

    def end(self) -> tuple[Tensor, Tensor]:
        """Wait for what comes, and return what came from before and after: nothing where the picture ends."""
        for work in self.works:
            work.wait()
        before, after = self.come
        self.works, self.come = (), []
        return before, after


def with_borders(inputs: Tensor, need: Need, shard: Shard, axis: int) -> Tensor:
    """Return a tensor and its neighbours' rows around it; the picture's ends have none."""
    if need == (0, 0) or shard.side(axis).is_whole:
        return inputs
    refuse_few(inputs, need, axis)
    around: Tensor = _Around.apply(inputs, Crossing(shard, axis, need))
    return around


def refuse_few(inputs: Tensor, need: Need, axis: int) -> None:
    """Refuse parts of which a neighbour wants more than there is."""
    if max(need) > inputs.shape[axis]:
        what = "rows" if axis == ROWS else "columns"
        found = f"{inputs.shape[axis]} {what} on a rank"
        needed = f"at least {max(need)}, which its neighbour looks at"
        raise PlanError(explain(f"{what} are too few", found, needed, "use fewer ranks, or a larger picture"))


class _Around(torch.autograd.Function):
    """Puts the neighbours' rows around the own ones, in a copy."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, crossing: Crossing) -> Tensor:
        axis, need, num = crossing.axis, crossing.need, inputs.shape[crossing.axis]
        up, down = inputs.narrow(axis, 0, need.after), inputs.narrow(axis, num - need.before, need.before)
        crossing.begin(up, down, need)
        before, after = crossing.end()
        ctx.crossing, ctx.num, ctx.first = crossing, num, before.shape[axis]
        return torch.cat((before, inputs, after), dim=axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        crossing, num, first = ctx.crossing, ctx.num, ctx.first
        axis, rest = crossing.axis, grad.shape[crossing.axis] - first - num
        # home comes what this rank had sent: its first rows from before, its last ones from after
        crossing.begin(
            grad.narrow(axis, 0, first), grad.narrow(axis, first + num, rest), Need(*reversed(crossing.need))
        )
        own = grad.narrow(axis, first, num).clone()
        _add_ends(own, axis, *crossing.end())
        return own, None


class OwnRows(NamedTuple):
    """Own rows by what looks at them: the middle by itself, the ends with what comes from beside."""

    middle: slice
    first: int  # rows of the end before
    last: int  # rows of the end after


def leave(inputs: Tensor, ends: OwnRows, crossing: Crossing) -> tuple[Tensor, Tensor, Tensor]:
    """Let borders go, and return the middle and the two ends, which are parts of the own rows."""
    found: tuple[Tensor, Tensor, Tensor] = _Leave.apply(inputs, ends, crossing)
    return found


def arrive(before: Tensor, after: Tensor, crossing: Crossing) -> tuple[Tensor, Tensor]:
    """Return the two ends with what has come from beside."""
    found: tuple[Tensor, Tensor] = _Arrive.apply(before, after, crossing)
    return found


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ends: OwnRows, crossing: Crossing) -> tuple[Tensor, Tensor, Tensor]:
        axis, need, num = crossing.axis, crossing.need, inputs.shape[crossing.axis]
        up, down = inputs.narrow(axis, 0, need.after), inputs.narrow(axis, num - need.before, need.before)
        crossing.begin(up, down, need)
        ctx.crossing, ctx.ends, ctx.num = crossing, ends, num
        start, stop = ends.middle.start, ends.middle.stop
        return (
            inputs.narrow(axis, start, stop - start),
            inputs.narrow(axis, 0, ends.first),
            inputs.narrow(axis, num - ends.last, ends.last),
        )

    @staticmethod
    def backward(ctx: Any, middle: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, None, None]:
        crossing, ends, num = ctx.crossing, ctx.ends, ctx.num
        axis, shape = crossing.axis, [*middle.shape]
        own = middle  # which is nobody else's: the gradient that a convolution or a pooling has made
        if (ends.middle.start, ends.middle.stop) != (0, num):
            shape[axis] = num
            own = middle.new_zeros(shape)
            own.narrow(axis, ends.middle.start, middle.shape[axis]).copy_(middle)
        _add_ends(own, axis, before, after)
        if not crossing.come:  # nothing here looked at what came from beside: no gradient goes home
            nothing = middle.narrow(axis, 0, 0)
            crossing.begin(nothing, nothing, Need(*reversed(crossing.need)))
        _add_ends(own, axis, *crossing.end())
        return own, None, None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, crossing: Crossing) -> tuple[Tensor, Tensor]:
        above, below = crossing.end()
        ctx.crossing, ctx.num = crossing, (above.shape[crossing.axis], below.shape[crossing.axis])
        return torch.cat((above, before), dim=crossing.axis), torch.cat((after, below), dim=crossing.axis)

    @staticmethod
    def backward(ctx: Any, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, None]:
        crossing, (above, below) = ctx.crossing, ctx.num
        axis = crossing.axis
        own = after.shape[axis] - below
        crossing.begin(
            before.narrow(axis, 0, above), after.narrow(axis, own, below), Need(*reversed(crossing.need))
        )
        return (
            before.narrow(axis, above, before.shape[axis] - above),
            after.narrow(axis, 0, own),
            None,
        )


def _add_ends(own: Tensor, axis: int, before: Tensor, after: Tensor) -> None:
    """Add to the first and the last rows, in shard."""
    own.narrow(axis, 0, before.shape[axis]).add_(before)
    own.narrow(axis, own.shape[axis] - after.shape[axis], after.shape[axis]).add_(after)
