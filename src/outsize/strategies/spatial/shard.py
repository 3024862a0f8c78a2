"""Where the part of a picture lies that a rank holds, and how it hears of those beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.plan.plan import Spatial
from outsize.ranks import World
from outsize.tiles.window import Tile

ROWS, COLS = 2, 3  # axes of a tensor (sample, channel, row, column)


@dataclass(frozen=True)
class Side:
    """What a rank holds along one axis of a picture; a start is a multiple of the network's whole stride."""

    before: int | None  # the rank that has what lies before; None: there the picture ends
    after: int | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing lies before or after."""
        return self.before is None and self.after is None


class Message(NamedTuple):
    """What goes to a neighbour, and what comes from it; empty where nothing does."""

    peer: int
    out: Tensor
    come: Tensor


class Work(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Wait until it is there."""


@dataclass(frozen=True)
class _Copied:
    """What has come to the host, on its way to the device; waited for after the messages."""

    pairs: Sequence[tuple[Tensor, Tensor]]

    def wait(self) -> None:
        for come, own in self.pairs:
            come.copy_(own)


@dataclass(frozen=True)
class Shard:
    """The part of a picture that one rank holds, among those that share the picture."""

    rows: Side
    cols: Side
    tile: Tile  # in the picture: its core, and the window that is read
    world: World  # of those that share the picture, row by row of the grid
    everyone: World  # of all pictures of the step
    grid: tuple[int, int]

    def side(self, axis: int) -> Side:
        """Return what lies along an axis."""
        return self.rows if axis == ROWS else self.cols

    def carry(self, messages: Sequence[Message]) -> list[Work]:
        """Let messages go, all at once; in the same order on all ranks."""
        if any(each.come.is_cuda for each in messages) and torch.cuda.device_count() < self.world.local_size:
            return self._by_host(messages)
        ways = []
        for peer, out, come in messages:
            ways += [dist.P2POp(dist.isend, out.contiguous(), peer)] if out.numel() else []
            ways += [dist.P2POp(dist.irecv, come, peer)] if come.numel() else []
        return [*dist.batch_isend_irecv(ways)] if ways else []

    def _by_host(self, messages: Sequence[Message]) -> list[Work]:
        """Let messages of a GPU that ranks share go by gloo, which sends none from there."""
        hosted = [
            Message(peer, out.cpu(), torch.empty_like(come, device="cpu")) for peer, out, come in messages
        ]
        pairs = [(each.come, own.come) for each, own in zip(messages, hosted, strict=True)]
        return [*self.carry(hosted), _Copied(pairs)]

    def gathered(self, own: Tensor) -> Tensor:
        """Return a row of numbers of each rank that has a part of the picture."""
        return self.world.gathered(own)


def shard_of(world: World, spatial: Spatial) -> Shard:
    """Return this rank's part: consecutive ranks share a picture, row by row of the grid."""
    num, (num_rows, num_cols) = spatial.num, spatial.grid
    first = world.rank // num * num
    parts = [range(each, each + num) for each in range(0, world.size, num)]
    row, col = divmod(world.rank - first, num_cols)

    def rank(at_row: int, at_col: int) -> int | None:
        inside = 0 <= at_row < num_rows and 0 <= at_col < num_cols
        return world.rank_of_all(first + at_row * num_cols + at_col) if inside else None

    return Shard(
        Side(rank(row - 1, col), rank(row + 1, col)),
        Side(rank(row, col - 1), rank(row, col + 1)),
        spatial.tiles()[world.rank - first],
        world if num == world.size else world.split(parts),
        world,
        spatial.grid,
    )
