"""Feeds the loop: batches made ahead, in order, already on their way to the device."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import forkserver
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize import stopping
from outsize.data.batch import Batch, MakeMaps, collate
from outsize.data.feeding import BatchProcesses, prefetch
from outsize.data.sample import Samples, Targets
from outsize.data.sampling import SampleCounts
from outsize.losses import Weights, WeightsByStride
from outsize.ranks import ALONE, World
from outsize.tiles.window import Tile
from outsize.train.copies import Copies

# Seconds after which a thread that prepares samples lets the training thread on. That one gives way at each of the
# hundreds of kernels it launches in a step; with Python's 5 ms it would often wait longer than the kernel runs.
_SWITCH_INTERVAL_S = 2e-4

# What is drawn for a sample is of (seed, epoch, number): spread out so that no two trainings meet in a key.
_SPREAD, _MOST_KEY = 0x9E3779B97F4A7C15, (1 << 63) - 1

Made = tuple[Batch, NDArray[np.int64]]  # and what there is of each class in it


@dataclass(frozen=True)
class BatchMaker:
    """Makes any batch of a training; which one depends on epoch and step alone."""

    windows: Samples
    count_terms: Callable[..., Mapping[str, float]]  # of losses in targets, with weights and maps
    losses: str
    weights: Weights | WeightsByStride
    num_classes: int
    batch: int
    make_maps: MakeMaps | None = None
    seed: int = 0
    mine: Sequence[int] | None = None  # the numbers of each batch that this process has; None: all
    tile: Tile | None = None  # the part of each picture that it has; None: all

    def __call__(self, key: tuple[int, int]) -> Made:
        """Make the batch of (epoch, step), or this process's part of it; totals are those of the part."""
        epoch, step = key
        own = range(self.batch) if self.mine is None else self.mine
        numbers = [step * self.batch + number for number in own]
        samples = [self.windows.sample(epoch, number) for number in numbers]
        keys = [(self.seed * _SPREAD + (epoch << 32) + number) & _MOST_KEY for number in numbers]
        num_px = np.stack([sample.target.count(self.num_classes) for sample in samples])

        def count(targets: Targets, maps: Mapping[str, Tensor]) -> Mapping[str, float]:
            return self.count_terms(self.losses, targets, self.weights, **({"maps": maps} if maps else {}))

        batch = collate(samples, count, self.make_maps, keys)
        return (batch, num_px) if self.tile is None else self._part(batch, self.tile, count, num_px)

    def _part(
        self, batch: Batch, tile: Tile, count: Callable[..., Mapping[str, float]], num_px: NDArray[np.int64]
    ) -> Made:
        """Cut this process's part out of pictures; what there is of classes the first of those that share them says."""
        part = batch.crop(tile.read, tile.core).each(torch.clone)  # or the whole would stay in memory
        totals = count(part.targets, part.maps)
        return replace(part, totals=totals), num_px if tile.index == 0 else num_px[:0]


def get_processes_ready() -> None:
    """Begin to load what processes need, beside whatever comes before the first batch."""
    multiprocessing.set_forkserver_preload([__name__])
    with stopping.shielded():
        forkserver.ensure_running()


class Feed:
    """Yields the batches of epochs, and counts what they hold; made by processes or else by threads until closed.

    One row of batches goes through all epochs: those of the next are made while the model is scored after the last.
    """

    def __init__(
        self,
        make: BatchMaker,
        seen: SampleCounts,
        *,
        num_epochs: int,
        steps_per_epoch: int,
        num_workers: int,
        in_processes: bool,
        device: torch.device,
        decoded_bytes: int = 0,
    ) -> None:
        """Processes keep up to `decoded_bytes` of decoded pictures in memory that they share."""
        self._world, self._num_copies, self._stops = ALONE, 1, False
        self._make, self._seen = make, seen
        self._num_epochs, self._steps_per_epoch = num_epochs, steps_per_epoch
        self._num_workers, self._copies = num_workers, Copies(device)
        self._pins = device.type == "cuda"  # or a copy would wait for all kernels of the step before
        self._processes: BatchProcesses[tuple[int, int], Made] | None = None
        self._made: Generator[Made, None, None] | None = None
        self._next_epoch = -1
        self._saved: tuple[int, int, Mapping[str, Any]] | None = None
        if in_processes:
            make.windows.share_memory(num_workers, decoded_bytes)
            self._processes = BatchProcesses(make, num_processes=num_workers, pin=self._pins)

    def among(self, world: World, num_copies: int = 1) -> Feed:
        """Make totals, and what was seen, those of all ranks, of which each makes its part of a batch.

        So many of them make the same part.
        """
        self._world, self._num_copies = world, num_copies
        return self

    def take_up(self, epoch: int, step: int, seen: Mapping[str, Any] | None) -> None:
        """Say what was `seen` of an epoch before a step, for else those batches are made once more."""
        self._saved = None if seen is None else (epoch, step, seen)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from a step on."""
        self._seen.clear()
        begin, saved = 0, self._saved
        if first_step and saved is not None and saved[:2] == (epoch, first_step):
            begin = first_step
            self._seen.take_up(saved[2])
        self._saved = None
        if self._made is None or begin or epoch != self._next_epoch:
            self._begin(epoch, begin)
        assert self._made is not None
        self._next_epoch = -1  # until all of this one are taken
        # from the first where it is not known what was seen: it is that of the whole epoch
        rest = islice(self._made, self._steps_per_epoch - begin)
        for step, (batch, num_px) in enumerate(rest, begin):
            totals = self._of_all(batch.totals, num_px)
            if step >= first_step:
                yield self._copies.copy(replace(batch, totals=totals))
        self._next_epoch = epoch + 1

    def stops(self) -> bool:
        """Say whether to end behind the step of the last batch: one rank that is asked to is enough for all."""
        return stopping.asked() if self._world.is_alone else self._stops

    def copied_s(self) -> float:
        """Return the time of copies to the device that ended since the last call; on a CPU there are none."""
        return self._copies.seconds()

    def close(self) -> None:
        """End the threads or processes."""
        if self._made is not None:
            self._made.close()
        if self._processes:
            self._processes.close()

    def _of_all(self, totals: Mapping[str, float | Tensor], num_px: NDArray[np.int64]) -> dict[str, float]:
        """Return the totals of all ranks and count what they see, in one exchange for each step.

        A total is 1 where nothing is labelled, so that the sum 0 stays 0.
        """
        seen = self._seen.counted(num_px)
        row = self._world.sum_row([stopping.asked(), *seen, *map(float, totals.values())])
        self._stops = row[0] > 0
        row = [each / self._num_copies for each in row]
        self._seen.add(row[1 : 1 + len(seen)])
        return {name: total or 1.0 for name, total in zip(totals, row[1 + len(seen) :], strict=True)}

    def _begin(self, epoch: int, step: int) -> None:
        if self._made is not None:
            self._made.close()
        keys = self._keys(epoch, step)
        self._made = self._processes.make(keys) if self._processes else self._by_threads(keys)

    def _keys(self, first_epoch: int, first_step: int) -> Iterator[tuple[int, int]]:
        """Yield the rest of the training one by one: its steps may be more than would fit in memory."""
        for epoch in range(first_epoch, self._num_epochs):
            for step in range(first_step if epoch == first_epoch else 0, self._steps_per_epoch):
                yield epoch, step

    def _by_threads(self, keys: Iterable[tuple[int, int]]) -> Generator[Made, None, None]:
        def make(key: tuple[int, int]) -> Made:
            batch, num_px = self._make(key)
            return (batch.pin_memory() if self._pins else batch), num_px

        before_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            yield from prefetch(make, keys, num_threads=self._num_workers, num_ahead=2 * self._num_workers)
        finally:
            sys.setswitchinterval(before_s)
