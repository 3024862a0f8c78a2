"""The hooks of one forward: what autograd holds in place of each saved tensor, and how it gets the tensor back."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outsize.measure.tensors import is_read_otherwise, without_history
from outsize.measure.where import Where, is_parameter
from outsize.plan.step import Key
from outsize.strategies.overwritten import changed
from outsize.strategies.saved.lineage import alike, is_saved_by_its_maker, known, note, read
from outsize.strategies.saved.values import (
    Kept,
    SavedUse,
    Signal,
    Slot,
    Value,
    geometry_of,
    leaves_of,
    sites_of,
)
from outsize.strategies.saved.watch import ForwardWatch, Site

_DEEPEST_OPS = 64  # in a row; a residual stream could else be followed back to the first layer
_REFUSED, _SHARED = -1, -2  # in place of versions: no recipe was seen; kept for another who saved it


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


def unpack(held: Slot | Kept | Signal) -> Tensor:
    """Return the tensor that was saved: kept, fetched from host memory, or recomputed."""
    if type(held) is Kept:
        if held.away is not None:
            return held.away.back()
        tensor = held.tensor
        assert tensor is not None
        if tensor._version != held.version:
            raise changed(held.module, held.version, tensor._version)
        return tensor
    if type(held) is Signal:
        held.trip.unpacking(held.key)
        found = unpack(held.held)
        held.trip.unpacked(held.key)
        return found
    assert type(held) is Slot
    value, use = held.value, SavedUse(held.pack, held.module)
    if value.tensor is not None or value.cached is not None:
        tensor, _ = value.make(use)
    else:
        kind = value.device.type
        # autocast did its casts the first time, and the recipe has them
        calm = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        with torch.no_grad(), calm:
            tensor, _ = value.make(use)
    if held.pending and type(value) is Value:
        held.pending = False
        value.done()
    return tensor if held.geometry is None else tensor.as_strided(*held.geometry)


class Names:
    """Gives each tensor that is saved in one forward its key."""

    def __init__(self, modules: list[nn.Module], where: Where) -> None:
        # by the storage itself and again for each forward: parameters may have been moved or replaced
        storages = [
            each.untyped_storage()
            for module in modules
            for tensors in (module._parameters, module._buffers)
            for each in tensors.values()
            if each is not None
        ]
        self.weights = {id(storage): storage for storage in storages}
        self._where = where
        self._ordinals: dict[tuple[str, int], int] = {}

    def is_weight(self, tensor: Tensor | None) -> bool:
        """Whether it lives in the memory of a parameter or buffer."""
        return tensor is not None and id(tensor.untyped_storage()) in self.weights

    def key(self, tensor: Tensor) -> Key | None:
        """Count a saved tensor and return its key; None for parameters and buffers."""
        storage = tensor.untyped_storage()
        if id(storage) in self.weights:
            return None
        if is_parameter(tensor):
            self.weights[id(storage)] = storage
            return None
        here = self._where.here
        ordinal = self._ordinals.get(here, 0)
        self._ordinals[here] = ordinal + 1
        return (here[0], here[1], ordinal)


class Packing:
    """The pack hook of one forward, which reads the graph for how tensors were made, and what it counts.

    `versions` tells for each key that the graph tells of how often its tensor is changed in place until it is saved:
    one that was changed otherwise is kept, for the graph may not know of the change. Below 0: to be kept.
    """

    def __init__(
        self,
        names: Names,
        where: Where,
        recompute: frozenset[Key],
        versions: dict[Key, int],
        watch: ForwardWatch | None = None,  # for what the graph does not tell
    ) -> None:
        self.names, self._where, self._recompute, self._versions = names, where, recompute, versions
        self._watch = watch
        self._num_packs = self._num_kept = self._num_recomputed = 0
        self._kept: dict[int, int] = {}  # storage -> bytes
        self._made: list[weakref.ref[Value]] = []
        self._met: set[Key] = set()
        self._refused: set[Key] = set()
        self.waits: Mapping[Key, int] = {}  # for keys of which it is known: as a value's
        self.missed = False  # neither graph nor watch could tell what they could before

    def pack(self, tensor: Tensor) -> Slot | Kept:
        """Return what autograd shall hold instead of the tensor."""
        if tensor.layout is not torch.strided:  # sparse: it has no one place in memory
            return Kept(without_history(tensor), tensor._version, self._where.here[0])
        return self.pack_as(self.names.key(tensor), tensor)

    def pack_as(self, key: Key | None, tensor: Tensor) -> Slot | Kept:
        """Return what autograd shall hold instead of a tensor of this key; None: a weight."""
        storage = tensor.untyped_storage()
        if key is None or is_read_otherwise(tensor):
            return Kept(without_history(tensor), tensor._version, self._where.here[0])
        self._num_packs += 1
        node = tensor.grad_fn
        if node is not None and tensor.output_nr != 0:
            node = None
        value = self._known(tensor, node)
        if key in self._recompute:
            self._met.add(key)
            made = self._made_again(value, tensor, node, key)
            if made is not None:
                self._num_recomputed += 1
                made.waits = self.waits.get(key, made.waits)
                geometry = None if value is None else geometry_of(tensor)
                return Slot(made, None if geometry == made.geometry else geometry, self._num_packs, key[0])
            self._refused.add(key)
            self.missed = self.missed or self._versions.get(key, 0) >= 0
        self._num_kept += 1
        self._kept[id(storage)] = storage.nbytes()
        if value is not None:
            return self._keep(value, tensor, node, key)
        kept = Kept(without_history(tensor), tensor._version, key[0])
        if node is not None:
            note(node, kept)
        if self._watch is not None:
            self._watch.keeps(tensor, kept)
        return kept

    def pack_view(self, value: Value | Kept, tensor: Tensor, module: str) -> Slot | Kept:
        """Return what autograd shall hold instead of a tensor whose storage is kept as a value already."""
        self._num_packs += 1
        self._num_kept += 1
        geometry = geometry_of(tensor)
        if type(value) is Kept and geometry == value.geometry:
            return value
        return Slot(value, None if geometry == value.geometry else geometry, self._num_packs, module)

    def _known(self, tensor: Tensor, node: Any) -> Value | Kept | None:
        """Return the value of a tensor that was saved or watched before."""
        value = None if node is None else known(node)
        if value is not None and value.version == tensor._version and value.dtype == tensor.dtype:
            return value
        return None if self._watch is None else self._watch.find(tensor)

    def _made_again(self, value: Value | Kept | None, tensor: Tensor, node: Any, key: Key) -> Value | None:
        """Return the value of a tensor with the recipe for it; None where it must be kept."""
        if value is None:
            version, expected = tensor._version, self._versions.get(key)
            recipe = read(tensor) if node is not None and expected in (version, _REFUSED) else None
            if expected == _REFUSED and recipe is not None:
                self.missed = True  # there may be one now, but only the watch can say for sure
            if expected != version or recipe is None:
                return None
            value = Value(tensor, version, recipe)
            value.settled = True
        elif self._versions.get(key) == _REFUSED:
            return None  # saved before, and changed since behind autograd's back: nobody's recipe is for that
        elif type(value) is Kept or value.recipe is None or value.depth > _DEEPEST_OPS or not value.settle():
            return None
        assert type(value) is Value
        if value.num_pending == 0:
            self._made.append(weakref.ref(value))
            if node is not None:
                note(node, value)
        return value

    def _keep(self, value: Value | Kept, tensor: Tensor, node: Any, key: Key) -> Slot | Kept:
        geometry = geometry_of(tensor)
        if type(value) is Kept:
            return value if geometry == value.geometry else Slot(value, geometry, self._num_packs, key[0])
        assert type(value) is Value
        if not value.settled or value.tensor is None:
            value.keep(tensor)
        if self._watch is not None:
            self._watch.release(tensor)
        if node is not None:
            note(node, value)
        return Slot(value, None if geometry == value.geometry else geometry, self._num_packs, key[0])

    def stats(self) -> SavedStats:
        """Count what became of all that was packed."""
        values = [value for each in self._made if (value := each()) is not None and value.tensor is None]
        return SavedStats(
            num_kept=self._num_kept,
            kept_bytes=sum(self._kept.values()),
            num_recomputed=self._num_recomputed,
            recomputed_bytes=sum(value.size_bytes for value in values),
            held_bytes=0
            if self._watch is None
            else self._held_bytes(values),  # the graph tells of what is saved
            unmet=self._recompute - self._met,
            refused=frozenset(self._refused),
        )

    def _held_bytes(self, made: list[Value]) -> int:
        def saved(value: Value | Kept) -> bool:
            storage = None if value.tensor is None else id(value.tensor.untyped_storage())
            return storage in self._kept or storage in self.names.weights

        leaves = {id(leaf): leaf for value in made for leaf in leaves_of(value, saved)[0]}
        return sum(leaf.size_bytes for leaf in leaves.values())


class LearningPacking(Packing):
    """The pack hook of a forward of which all is watched; it finds out what the graph alone could have shown."""

    def __init__(self, names: Names, where: Where, recompute: frozenset[Key], watch: ForwardWatch) -> None:
        super().__init__(names, where, recompute, {}, watch)
        self._all = watch
        self._found: list[tuple[Key, weakref.ref[Value], int | None]] = []  # a version where the graph agrees

    def _known(self, tensor: Tensor, node: Any) -> Value | Kept | None:  # noqa: ARG002 - the watch knows more
        return self._all.value_of(tensor)

    def _made_again(self, value: Value | Kept | None, tensor: Tensor, node: Any, key: Key) -> Value | None:
        made = super()._made_again(value, tensor, node, key)
        if made is not None:
            agrees = node is not None and alike(read(tensor), made.recipe)
            self._found.append((key, weakref.ref(made), tensor._version if agrees else None))
        return made

    def learnt(self) -> tuple[dict[Key, int] | None, frozenset[Site]]:
        """Return what `Packing` needs to know of each key, and the operations that have to be watched for it.

        None where the graph is gone already, at least in part, and nothing can be said of it.
        """
        versions = dict.fromkeys(self._refused, _REFUSED)
        watched: list[Value] = []
        by_graph: set[int] = set()
        for key, found, version in self._found:
            value = found()
            if value is None:
                return None, frozenset()
            if value.tensor is not None:
                versions[key] = _SHARED
            elif version is None:
                watched.append(value)
            else:
                versions[key] = version
                if value.recipe is not None and is_saved_by_its_maker(value.recipe):
                    by_graph.add(id(value))
        sites: set[Site] = set()
        by_graph -= {id(value) for value in watched}  # also saved as a view, of which the graph does not tell
        for value in watched:
            sites |= sites_of(value, stop=lambda each: id(each) in by_graph)
        return versions, frozenset(sites)
