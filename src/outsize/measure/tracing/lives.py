"""The log of a step: its operations, its saved tensors, and the life of every storage, from first sight to the last."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from outsize.measure.tensors import without_history
from outsize.plan.step import Role, Saved, StepFacts, StepOp, Storage, allocated_bytes


@dataclass
class _Life:
    """A storage as it goes: what is not known before the end is filled in."""

    size_bytes: int
    born: int
    role: Role
    dies: int | None = None
    let_go: int | None = None
    num_holders: int = 1  # of its memory: itself, and twins that autograd keeps


@dataclass(frozen=True, eq=False)
class Away:
    """A saved tensor that waits in host memory."""

    copy: Tensor
    device: torch.device
    index: int  # of its storage


@dataclass
class Log:
    """What a step did so far; storages elsewhere than on the device, where it is given, take nothing of its memory."""

    device: torch.device | None = None
    ops: list[StepOp] = field(default_factory=list)
    lives: list[_Life] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    ordinals: Counter[tuple[str, int]] = field(default_factory=Counter)
    known: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)
    unseen: bool = False  # operations that run now are our own

    def find(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage, if it was seen before."""
        storage = tensor.untyped_storage()
        known = self.known.get(id(storage))
        # by the storage itself, because the id, like the address, is soon used again
        return known[1] if known is not None and known[0]() is storage else None

    def know(self, tensor: Tensor, role: Role, *, born: int) -> int:
        """Return the number of a tensor's storage, which is new or takes on another role."""
        found = self.find(tensor)
        if found is not None:
            self.lives[found].role = role
            return found
        storage, index = tensor.untyped_storage(), len(self.lives)
        is_here = self.device is None or tensor.device == self.device
        self.lives.append(_Life(allocated_bytes(storage.nbytes()) if is_here else 0, born, role))
        self._follow(storage, index, is_twin=False)
        return index

    def seen(self, tensor: Tensor) -> int:
        """Return the number of a storage that is read; what nobody made or gave is an input from here on."""
        found = self.find(tensor)
        return self.know(tensor, "input", born=len(self.ops)) if found is None else found

    def twin_of(self, tensor: Tensor, index: int) -> Tensor:
        """Return a shape for autograd to keep in place of one: so it is seen when others let go of the storage."""
        num_bytes = tensor.untyped_storage().nbytes()
        if num_bytes % tensor.element_size() or tensor.is_conj() or tensor.is_neg():
            return without_history(tensor)
        with self._unseen():
            flat = torch.empty(num_bytes // tensor.element_size(), dtype=tensor.dtype, device=tensor.device)
            twin = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        self._twin(twin.untyped_storage(), index)
        return twin

    def away(self, tensor: Tensor, index: int) -> Away:
        """Return a copy in host memory for autograd to keep in place of a real tensor, which may then go."""
        with self._unseen():
            found = Away(tensor.detach().to("cpu", copy=True), tensor.device, index)
        self._twin(found, index)
        return found

    def back(self, away: Away) -> Tensor:
        """Return the tensor that is away, in memory that counts as what it had."""
        with self._unseen():
            found = away.copy.to(away.device, copy=True)
        self._twin(found.untyped_storage(), away.index)
        return found

    def pass_on(self, tensor: Tensor, follower: Tensor) -> None:
        """Let another tensor have the memory of this one, as if it had been changed in place."""
        index = self.seen(tensor)
        self.lives[index].num_holders += 1
        self._follow(follower.untyped_storage(), index, is_twin=False)

    def facts(self, modules: Iterable[str], *, training: bool, twins: bool) -> StepFacts:
        """Return all of it at the end of the step; `twins`: whether it was seen when a storage was let go of."""
        end = len(self.ops)
        storages = []
        for index, life in enumerate(self.lives):
            dies, let_go = (end if each is None else each for each in (life.dies, life.let_go))
            lets_go = let_go if twins else None
            storages.append(Storage(index, life.size_bytes, life.born, dies, life.role, lets_go))
        self.known.clear()  # no reference will call back any more
        return StepFacts(tuple(self.ops), tuple(storages), tuple(self.saved), training, tuple(modules))

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        self.unseen = True
        try:
            yield
        finally:
            self.unseen = False

    def _twin(self, holder: Any, index: int) -> None:
        self.lives[index].num_holders += 1
        self._follow(holder, index, is_twin=True)

    def _follow(self, storage: Any, index: int, *, is_twin: bool) -> None:
        life, key = self.lives[index], id(storage)

        def die(_: object) -> None:
            life.num_holders -= 1
            if not is_twin:
                life.let_go = len(self.ops)
            if not life.num_holders:
                life.dies = len(self.ops)
            self.known.pop(key, None)

        self.known[key] = (weakref.ref(storage, die), index)
