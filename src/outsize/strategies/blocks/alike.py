"""Sees whether a block saves the same when it runs again: a sample of it is kept, and compared on the device.

    first run    saves a, b, c    a few hundred numbers of each are kept
    second run   saves a, b, c    compared with them: what is not the same would give wrong gradients

The first calls of a block are looked at as a whole and at once, before a gradient leaves it. Later the last tensor and
one that takes turns are looked at in each call, and all of them now and then: two kernels of no size in each run. On a
GPU nobody waits for the answer there: it is looked at when it has come, in a later call of the block. Nothing is looked
at while a CUDA graph is recorded, whose replays run no Python; steps before a recording are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks

from outsize.errors import ModelError, explain
from outsize.measure.where import is_parameter

_MOST = 256  # numbers of one tensor
_FIRST, _EVERY = 3, 32  # calls that are looked at as a whole
# What kernels that round otherwise may differ by: in units of the type, and at most.
_ROUNDINGS, _LOOSEST = 1000, 0.05


class RunsOtherwise(ModelError):
    """A block that ran again gave something else; it is kept from now on."""


@dataclass
class Checks:
    """What is known of a block that is run again."""

    path: str
    keeps: bool = False  # it runs as it is written, for it was found out
    _num_calls: int = 0
    # of saved tensors that can be looked at, in the latest first run
    _places: list[int] = field(default_factory=list)
    # answers on their way from a GPU
    _coming: deque[tuple[Tensor, Any]] = field(default_factory=deque)

    def begin(self, besides: Collection[int] = ()) -> Call:
        """Begin a call of the block; storages of these ids hold others in the second run, and may."""
        self._look()
        number, self._num_calls = self._num_calls, self._num_calls + 1
        if number < _FIRST or number % _EVERY == 0:
            return Call(self, None, besides, waits=number < _FIRST)
        turns = {self._places[-1], self._places[number % len(self._places)]} if self._places else ()
        return Call(self, frozenset(turns), besides, waits=False)

    def saved(self, places: list[int]) -> None:
        """Note which of the tensors that a first run saved can be looked at."""
        self._places = places

    def refuse(self, found: str) -> RunsOtherwise:
        """Keep the block from now on, and return the error that says so."""
        self.keeps = True
        return RunsOtherwise(
            explain(
                f"module '{self.path}' gave something else when it ran again for backward, gradients are wrong",
                found,
                "a forward that does the same with the same inputs",
                "drop these gradients and repeat the step: the module is kept from now on, which takes more memory "
                "than planned; or take out of its forward what changes or draws beside torch's own generators",
            )
        )

    def later(self, differ: Tensor) -> None:
        """Look at an answer when it has come."""
        there = torch.empty(differ.shape, dtype=differ.dtype, pin_memory=True).copy_(
            differ, non_blocking=True
        )
        event = torch.cuda.Event()
        event.record()
        self._coming.append((there, event))

    def _look(self) -> None:
        if not self._coming or torch.cuda.is_current_stream_capturing():
            return
        while self._coming and self._coming[0][1].query():
            there, _ = self._coming.popleft()
            if there.any():
                raise self.refuse("other numbers in a step before this one")


class Call:
    """Both runs of one call."""

    def __init__(
        self, checks: Checks, which: frozenset[int] | None, besides: Collection[int], *, waits: bool
    ) -> None:
        self._checks, self._which, self._besides, self._waits = checks, which, besides, waits
        self._first: list[tuple[torch.Size, torch.dtype, Tensor | None] | None] = []

    @contextmanager
    def first(self) -> Iterator[None]:
        """Keep samples of what is saved inside."""
        place = 0

        def note(tensor: Tensor) -> None:
            nonlocal place
            self._first.append(self._form(tensor, place))
            place += 1

        with _noting(note):
            yield
        self._checks.saved([each for each, form in enumerate(self._first) if form is not None])

    @contextmanager
    def second(self) -> Iterator[None]:
        """Compare with what is saved inside; as often as backward asks for it."""
        place, pairs = 0, []

        def note(tensor: Tensor) -> None:
            nonlocal place
            if place >= len(self._first):
                raise self._checks.refuse(f"more tensors that it saves than {len(self._first)}")
            before = self._first[place]
            place += 1
            if before is None:
                return
            size, dtype, sample = before
            if (size, dtype) != (tensor.shape, tensor.dtype):
                raise self._checks.refuse(f"a tensor of {tuple(tensor.shape)} instead of {tuple(size)}")
            now = None if sample is None else _sample(tensor)
            if sample is not None and now is not None:
                pairs.append((sample, now))

        went_through = False
        try:
            with _noting(note):
                yield
            went_through = True
        finally:
            if pairs and not _is_recording(pairs[0][0]):
                self._compare(pairs)
        if went_through and place < len(self._first):  # else torch stops it when it has what it wants
            raise self._checks.refuse(f"{place} tensors that it saves instead of {len(self._first)}")

    def _form(self, tensor: Tensor, place: int) -> tuple[torch.Size, torch.dtype, Tensor | None] | None:
        if is_parameter(tensor) or tensor.layout is not torch.strided or is_opaque(tensor):
            return None
        if id(tensor.untyped_storage()) in self._besides:
            return None
        look = (self._which is None or place in self._which) and not _is_recording(tensor)
        return tensor.shape, tensor.dtype, _sample(tensor) if look else None

    def _compare(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        differ = torch.stack([_differ(*each) for each in pairs])
        if differ.device.type == "cuda" and not self._waits:
            self._checks.later(differ.any())
        elif differ.any():
            raise self._checks.refuse("other numbers")


@contextmanager
def _noting(note: Any) -> Iterator[None]:
    """Let each tensor that is saved inside pass by on its way to the hooks that decide what becomes of it."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if top is None:
        yield
        return
    pack, unpack = top

    def noted(tensor: Tensor) -> Any:
        note(tensor)
        return pack(tensor)

    with saved_tensors_hooks(noted, unpack):
        yield


def is_opaque(tensor: Tensor) -> bool:
    """Whether it is what a library notes for its backward, with gaps that hold anything: of cuDNN or oneDNN."""
    return tensor.dtype is torch.uint8 and tensor.dim() == 1


def _is_recording(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _sample(tensor: Tensor) -> Tensor | None:
    """Return a few of its numbers, spread over it; None of one that has none, or no such numbers."""
    if (
        isinstance(tensor, FakeTensor)
        or tensor.is_meta
        or tensor.layout is not torch.strided
        or not tensor.numel()
    ):
        return None
    # unseen by who counts operations and memory
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        found = tensor.detach()[_spread(tensor.shape)].clone()
        return torch.view_as_real(found.resolve_conj()) if found.is_complex() else found


@cache
def _spread(shape: torch.Size) -> tuple[slice, ...]:
    """Return which rows, columns and so on to look at: not those at the border alone, which may be padding."""
    share = max(1.0, shape.numel() / _MOST)
    steps = [1] * len(shape)
    by_size = sorted(range(len(shape)), key=lambda axis: shape[axis])
    for left, axis in zip(range(len(shape), 0, -1), by_size, strict=True):
        steps[axis] = min(shape[axis], max(1, round(share ** (1 / left))))
        share = max(1.0, share / steps[axis])
    return tuple(slice(step // 2, None, step) for step in steps)


def _differ(first: Tensor, second: Tensor) -> Tensor:
    """Return, as a tensor of one, whether samples differ by more than kernels round."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        if not first.is_floating_point():
            return (first != second).any()
        share = min(_LOOSEST, _ROUNDINGS * torch.finfo(first.dtype).eps)
        one, other = first.double(), second.double()
        strange = one.isfinite() != other.isfinite()
        one, other = one.nan_to_num(0, 0, 0), other.nan_to_num(0, 0, 0)
        return ((one - other).abs().mean() > share * one.abs().mean()) | strange.any()
