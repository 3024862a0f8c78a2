"""Decides for each tensor that autograd saves in forward whether to keep it or to make it again in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.measure.where import Where
from outsize.plan.step import Key
from outsize.strategies.recipes import Geometry, Use, Value, geometry_of, leaves_of, without_history
from outsize.strategies.watch import Watch

_DEEPEST_OPS = 64  # in a row; a residual stream could else be followed back to the first layer


class Fate(Enum):
    """What becomes of a saved tensor."""

    KEEP = "keep"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class SavedStats:
    """What became of the tensors that one forward saved, parameters and buffers left out."""

    num_kept: int
    kept_bytes: int  # each storage once
    num_recomputed: int
    recomputed_bytes: int
    held_bytes: int  # what autograd did not save, but recipes start from
    unmet: frozenset[Key]  # asked to be recomputed, and no such tensor was saved
    refused: frozenset[Key]  # asked to be recomputed, and had to be kept


class SavedTensors:
    """Carries out, for one model, the decision which saved tensors are recomputed.

    It lives as long as a training. Each forward, loss included, runs inside `forward()`; backward runs outside:

        with SavedTensors(model, keys) as saved:
            for batch in batches:
                with saved.forward():
                    loss = ...
                loss.backward()

    What the keys do not name is kept.
    """

    def __init__(self, model: nn.Module, recompute: frozenset[Key]) -> None:
        self._model = model
        self._recompute = recompute
        self._where = Where(model)
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
        with Watch() as watch:
            packing = _Packing(self._model, self._where, watch, self._recompute)
            with saved_tensors_hooks(packing.pack, _unpack):
                yield
        self.stats = packing.stats()


def recomputable(model: nn.Module, run: Callable[[], object], *, most_ops: int = 6) -> frozenset[Key]:
    """List what is worth recomputing, by running one forward (real, fake or meta) in which all is kept.

    Worth it is what at most `most_ops` cheap operations make from tensors that are kept anyway, or that are
    together smaller than itself: the two parts of a concatenation of which one is a skip.
    """
    listing: list[tuple[Key, Value]] = []

    def look(tensor: Tensor) -> Tensor:
        key = names.key(tensor)
        if key is not None:
            value = watch.value_of(tensor)
            if value.recipe is None:
                value.keep(tensor)
            listing.append((key, value))
        return without_history(tensor)

    with Where(model) as where, Watch() as watch:
        names = _Names(model, where)
        with saved_tensors_hooks(look, lambda tensor: tensor):
            run()
    return _worthwhile(listing, names, most_ops)


def _worthwhile(listing: list[tuple[Key, Value]], names: _Names, most_ops: int) -> frozenset[Key]:
    there = {id(value) for _, value in listing if value.recipe is None}
    fates: dict[int, Fate] = {}
    for _, value in listing:
        if value.recipe is None or id(value) in fates:
            continue
        leaves, num_ops = leaves_of(
            value, stop=lambda each: id(each) in there or names.is_weight(each.tensor)
        )
        extra_bytes = sum(leaf.size_bytes for leaf in leaves)
        lost = any(leaf.overwritten for leaf in leaves)
        if lost or num_ops > most_ops or extra_bytes >= value.size_bytes:
            fates[id(value)] = Fate.KEEP
            there.add(id(value))
        else:
            fates[id(value)] = Fate.RECOMPUTE
            there.update(id(leaf) for leaf in leaves)
    return frozenset(key for key, value in listing if fates.get(id(value)) is Fate.RECOMPUTE)


class _Slot:
    """What autograd holds in place of a saved tensor."""

    def __init__(self, value: Value, geometry: Geometry | None, use: Use) -> None:
        self.value, self.geometry, self.use = value, geometry, use
        self.pending = True
        value.num_pending += 1
        value.last_pack = use.pack


def _unpack(slot: _Slot) -> Tensor:
    value = slot.value
    if value.tensor is not None:
        tensor, _ = value.make(slot.use)
    else:
        kind = value.device.type
        # autocast did its casts the first time, and the recipe has them
        calm = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        with torch.no_grad(), calm:
            tensor, _ = value.make(slot.use)
    if slot.pending:
        slot.pending = False
        value.done()
    return tensor if slot.geometry is None else tensor.as_strided(*slot.geometry)


class _Names:
    """Gives each tensor that is saved in one forward its key."""

    def __init__(self, model: nn.Module, where: Where) -> None:
        # by the storage itself and anew for each forward: parameters may have been moved or replaced
        tensors = (*model.parameters(), *model.buffers())
        self._weights = {id(storage): storage for storage in (each.untyped_storage() for each in tensors)}
        self._where = where
        self._ordinals: Counter[tuple[str, int]] = Counter()

    def is_weight(self, tensor: Tensor | None) -> bool:
        """Whether it lives in the memory of a parameter or buffer."""
        return tensor is not None and id(tensor.untyped_storage()) in self._weights

    def key(self, tensor: Tensor) -> Key | None:
        """Count it and return its key; None for parameters and buffers."""
        if self.is_weight(tensor):
            return None
        here = self._where.here
        ordinal = self._ordinals[here]
        self._ordinals[here] = ordinal + 1
        return (*here, ordinal)


class _Packing:
    """The pack hook of one forward, and what it counts."""

    def __init__(self, model: nn.Module, where: Where, watch: Watch, recompute: frozenset[Key]) -> None:
        self._names = _Names(model, where)
        self._where, self._watch, self._recompute = where, watch, recompute
        self._num_packs = 0
        self._values: WeakValueDictionary[int, Value] = WeakValueDictionary()
        self._met: set[Key] = set()
        self._refused: set[Key] = set()
        self._num_kept = self._num_recomputed = 0

    def pack(self, tensor: Tensor) -> _Slot:
        """Return what autograd shall hold instead of the tensor."""
        self._num_packs += 1
        use = Use(self._num_packs, self._where.here[0])
        key = self._names.key(tensor)
        if key is None:
            return _Slot(Value(without_history(tensor), tensor._version), None, use)
        value = self._watch.value_of(tensor)
        match self._fate(key, value):
            case Fate.KEEP:
                self._num_kept += 1
                if not value.settled or value.tensor is None:
                    value.keep(tensor)
                    self._watch.release(tensor)
            case Fate.RECOMPUTE:
                self._num_recomputed += 1
            # a third case has its place here: move to host memory
        self._values[id(value)] = value
        geometry = geometry_of(tensor)
        return _Slot(value, None if geometry == value.geometry else geometry, use)

    def _fate(self, key: Key, value: Value) -> Fate:
        if key not in self._recompute:
            return Fate.KEEP
        self._met.add(key)
        if value.recipe is not None and value.depth <= _DEEPEST_OPS and value.settle():
            return Fate.RECOMPUTE
        self._refused.add(key)
        return Fate.KEEP

    def stats(self) -> SavedStats:
        """Count what became of all that was packed."""
        values = list(self._values.values())
        made = [value for value in values if value.tensor is None]

        def saved(value: Value) -> bool:
            return (id(value) in self._values and value.tensor is not None) or self._names.is_weight(
                value.tensor
            )

        leaves = {id(leaf): leaf for value in made for leaf in leaves_of(value, saved)[0]}
        return SavedStats(
            num_kept=self._num_kept,
            kept_bytes=sum(value.size_bytes for value in values if value.tensor is not None),
            num_recomputed=self._num_recomputed,
            recomputed_bytes=sum(value.size_bytes for value in made),
            held_bytes=sum(leaf.size_bytes for leaf in leaves.values()),
            unmet=self._recompute - self._met,
            refused=frozenset(self._refused),
        )
