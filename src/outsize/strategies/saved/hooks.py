"""Keeps each tensor that autograd saves in forward, recomputes it in backward, or moves it to host memory between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.measure.tensors import without_history
from outsize.measure.where import Where
from outsize.plan.plan import Swap
from outsize.plan.step import Key
from outsize.strategies.saved.moving import moved
from outsize.strategies.saved.packing import LearningPacking, Names, Packing, SavedStats, unpack
from outsize.strategies.saved.recipes import fuses
from outsize.strategies.saved.switch import Switch
from outsize.strategies.saved.values import Kept, Value, leaves_of
from outsize.strategies.saved.watch import ForwardWatch, Site
from outsize.strategies.swap import Shuttle

__all__ = ["SavedStats", "SavedTensors", "recomputable"]


# What so many forwards do otherwise than planned or than learnt, others will do, too: what a plan names and no forward
# saves is no longer waited for, and where the graph tells too little again and again all are watched.
_WATCHED_AGAIN = 200  # forwards after which one is watched as a whole again
_PATIENCE = 3


class SavedTensors:
    """Carries out, for one model, the decision which saved tensors are recomputed and which are moved.

    It lives as long as a training. Each forward, loss included, runs inside `forward()`; backward runs outside:

        with SavedTensors(model, keys) as saved:
            for batch in batches:
                with saved.forward():
                    loss = ...
                loss.backward()

    What neither the keys nor `swap` name is kept. `costly` names calls of modules whose convolutions may run again,
    `waits` tells of keys how long before its turn a tensor may be made to stay.

    The first forward is watched, operation by operation. Where autograd's own graph tells the same about all tensors
    that are recomputed, the next ones are not: what the graph tells is true of each step by itself, and what it does
    not tell in a step is kept in that step, and the next one is watched again. Changes that pass autograd by (`.data`,
    in place under no_grad) are seen by the watch alone: a model that begins to make such changes in the middle of a
    training is found out only when it is watched again, as it is now and then. Those through numpy's eyes nobody sees.
    """

    def __init__(
        self,
        model: nn.Module,
        recompute: frozenset[Key],
        swap: Swap | None = None,
        *,
        costly: frozenset[tuple[str, int]] = frozenset(),
        waits: Mapping[Key, int] | None = None,
        tell: Callable[[str], object] = warnings.warn,
    ) -> None:
        self._model = model
        self.shuttle = None if swap is None else Shuttle(_device_of(model), swap, tell)
        self._modules = list(model.modules())
        self._recompute, self._costly, self._waits = recompute, costly, waits or {}
        self._where = Switch(model)
        # what the graph tells of, and of what it does not; None: to be found out
        self._versions: dict[Key, int] | None = None if recompute else {}
        self._sites: frozenset[Site] = frozenset()
        self._places: frozenset[tuple[str, int]] = frozenset()
        self._num_watched = 0
        self._num_missed = 0  # forwards in a row that kept what they should not have
        self._num_read = 0  # forwards that were not watched as a whole
        self.stats: SavedStats | None = None  # of the latest forward that went through

    def __enter__(self) -> SavedTensors:
        self._where.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._where.__exit__(kind, error, trace)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run one forward of one part of a step inside this."""
        self._where.begin_step()
        names = Names(self._modules, self._where)
        with self._learning(names) if self._versions is None else self._reading(names, self._versions):
            yield

    def close(self) -> None:
        """Give host memory back; what still lies there is lost."""
        if self.shuttle is not None:
            self.shuttle.close()

    def _hooks(self, packing: Packing) -> AbstractContextManager[None]:
        packing.waits = self._waits
        if self.shuttle is None:
            return saved_tensors_hooks(packing.pack, unpack)
        return moved(self.shuttle, packing)

    @contextmanager
    def _learning(self, names: Names) -> Iterator[None]:
        """Watch all, and find out what need not be watched the next time."""
        for kind in {each.device.type for each in self._model.parameters()}:
            fuses(kind)  # builds what backward will need, here where no harm is done if it cannot
        with _forgetting(ForwardWatch(self._where, costly=self._costly)) as watch, watch:
            packing = LearningPacking(names, self._where, self._recompute, watch)
            with self._hooks(packing):
                yield
            self.stats = packing.stats()
            self._num_watched += 1
            # one without gradients, or through another part of the model, is no example
            is_example = self._num_watched >= _PATIENCE or not self.stats.unmet
            if is_example and self.stats.unmet != self._recompute and self._num_missed < _PATIENCE:
                self._versions, self._sites = packing.learnt()
                self._places = frozenset((path, call) for path, call, _ in self._sites)

    @contextmanager
    def _reading(self, names: Names, versions: dict[Key, int]) -> Iterator[None]:
        """Read the graph, and watch only what has to be."""
        if not self._sites:
            packing = Packing(names, self._where, self._recompute, versions)
            with self._hooks(packing):
                yield
        else:
            with _forgetting(ForwardWatch(self._where, self._sites, self._costly)) as watch:
                packing = Packing(names, self._where, self._recompute, versions, watch)
                with self._where.only_in(watch, self._places), self._hooks(packing):
                    yield
        self._num_missed = self._num_missed + 1 if packing.missed else 0
        self._num_read += 1
        if packing.missed or (self._recompute and self._num_read % _WATCHED_AGAIN == 0):
            self._versions = None
        self.stats = packing.stats()


def _device_of(model: nn.Module) -> torch.device:
    """Return where a model computes: some of its weights may wait on the host, but not all."""
    devices = (each.device for each in (*model.parameters(), *model.buffers()))
    return next((each for each in devices if each.type != "cpu"), torch.device("cpu"))


@contextmanager
def _forgetting(watch: ForwardWatch) -> Iterator[ForwardWatch]:
    try:
        yield watch
    finally:
        watch.forget()


def recomputable(model: nn.Module, run: Callable[[], object], *, most_ops: int = 6) -> frozenset[Key]:
    """List what is worth recomputing, by running one forward (real, fake or meta) in which all is kept.

    Worth it is what at most `most_ops` cheap operations make from tensors that are kept anyway, or that are
    together smaller than itself: the two parts of a concatenation of which one is a skip.
    """
    listing: list[tuple[Key, Value | Kept]] = []

    def look(tensor: Tensor) -> Tensor:
        key = names.key(tensor)
        if key is not None:
            value = watch.value_of(tensor)
            if type(value) is Value and value.recipe is None:
                value.keep(tensor)
            listing.append((key, value))
        return without_history(tensor)

    with Where(model) as where, _forgetting(ForwardWatch()) as watch, watch:
        names = Names(list(model.modules()), where)
        with saved_tensors_hooks(look, lambda tensor: tensor):
            run()
    found = _worthwhile(listing, names, most_ops)
    # the graph holds the hook, the hook this list, its values tensors, and these the graph
    listing.clear()
    return found


def _worthwhile(listing: list[tuple[Key, Value | Kept]], names: Names, most_ops: int) -> frozenset[Key]:
    there = {id(value) for _, value in listing if value.recipe is None}
    again: set[int] = set()
    for _, value in listing:
        if value.recipe is None or id(value) in again or id(value) in there:
            continue
        leaves, num_ops = leaves_of(
            value, stop=lambda each: id(each) in there or names.is_weight(each.tensor)
        )
        extra_bytes = sum(leaf.size_bytes for leaf in leaves)
        lost = any(leaf.overwritten for leaf in leaves)
        if lost or num_ops > most_ops or extra_bytes >= value.size_bytes:
            there.add(id(value))
        else:
            again.add(id(value))
            there.update(id(leaf) for leaf in leaves)
    return frozenset(key for key, value in listing if id(value) in again)
