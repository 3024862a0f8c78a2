"""Which samples of a step are whose: each micro-batch is dealt out over the ranks, so that all run it together.

    batch of 8, 2 micro-batches, 3 ranks      rank 0   rank 1   rank 2
    micro-batch 0:  0 1 2 3                   0 1      2        3        one call of the model on each rank, and
    micro-batch 1:  4 5 6 7                   4 5      6        7        what looks across samples sees all four

One process that runs the same micro-batches sees the same samples together, so batch norm and dropout are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outsize.data.batch import Batch
from outsize.ranks import ALONE, World

if TYPE_CHECKING:
    from outsize.strategies.step import StageWatch


@dataclass
class Share:
    """What of each batch is this rank's, how it is cut into micro-batches, and which of them runs now."""

    world: World
    num_samples: int  # of a batch, over all ranks
    sizes: list[list[int]]  # by replica: its samples in each micro-batch
    numbers: list[int]  # of a batch, in the order in which this rank has them
    now: int = field(default=0)  # the micro-batch that runs
    stages: World = ALONE  # the ranks that have these samples together, each a part of the model
    local_norm: bool = False  # stages norm by their own samples alone
    watch: StageWatch | None = None  # is told when stages did what
    each: int = 1  # ranks of a replica: they have the same samples, of whose pictures each holds a part

    @property
    def replica(self) -> int:
        """Which replica this rank is of."""
        return self.world.rank // self.each

    @property
    def of_all(self) -> int:
        """How many samples all ranks have together in the micro-batch that runs."""
        return sum(each[self.now] for each in self.sizes)

    @property
    def mine(self) -> slice:
        """Which of those are this rank's."""
        begin = sum(each[self.now] for each in self.sizes[: self.replica])
        return slice(begin, begin + self.sizes[self.replica][self.now])

    def recut(self, num_parts: int) -> None:
        """Cut what each rank has into other micro-batches, as many on all of them: batches are made ahead."""
        held = [sum(each) for each in self.sizes]
        num_parts = min(num_parts, *held)
        if num_parts != len(self.sizes[0]):
            self.sizes = [_even(num, num_parts) for num in held]
        self.now = 0

    def cut(self, batch: Batch) -> list[tuple[int, slice]]:
        """Return the micro-batches of this rank's part of a batch: their numbers and places."""
        sizes = self.sizes[self.replica]
        assert len(batch.images) == sum(sizes), "a batch of another share"
        self.now = 0
        return [
            (number, slice(sum(sizes[:number]), sum(sizes[: number + 1]))) for number in range(len(sizes))
        ]

    def take(self, batch: Batch, place: tuple[int, slice]) -> Batch:
        """Return a micro-batch, which runs from now on."""
        self.now, samples = place
        return batch if samples == slice(0, len(batch.images)) else batch.part(samples)


def share_out(world: World, num_samples: int, num_parts: int = 1, each: int = 1) -> Share:
    """Deal the samples of a batch out over replicas of `each` ranks; `num_parts` are the micro-batches planned.

    Those of one process, unless one of them has fewer samples than there are replicas: then as many of even size.
    """
    most = -(-num_samples // num_parts)
    parts = [min(most, num_samples - begin) for begin in range(0, num_samples, most)]
    num_replicas = world.size // each
    if parts[-1] < num_replicas:
        parts = _even(num_samples, min(num_parts, num_samples // num_replicas))
    by_part = [_even(num, num_replicas) for num in parts]
    sizes = [list(of_replica) for of_replica in zip(*by_part, strict=True)]
    return Share(world, num_samples, sizes, _numbers(by_part, world.rank // each), each=each)


def _numbers(by_part: Sequence[Sequence[int]], replica: int) -> list[int]:
    numbers: list[int] = []
    begin = 0
    for of_replicas in by_part:
        first = begin + sum(of_replicas[:replica])
        numbers += range(first, first + of_replicas[replica])
        begin += sum(of_replicas)
    return numbers


def _even(number: int, num_parts: int) -> list[int]:
    """Cut a number into so many that differ by one at most, the larger ones first."""
    return [number // num_parts + (part < number % num_parts) for part in range(num_parts)]
