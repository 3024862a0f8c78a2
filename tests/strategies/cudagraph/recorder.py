"""Stands in for CUDA graphs where there is no GPU: what a step runs is noted, undone, and run again by a replay.

As on a GPU a recording computes nothing that stays: what it changed is put back, what it made is spoilt, so a replay
that does not write a number shows it. And as on a GPU a step that asks for the value of a tensor cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.strategies.blocks import alike
from outsize.strategies.cudagraph import capture
from outsize.strategies.swap import move, streams

_WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class Recorder:
    """Counts recordings, those of them by pages, and replays."""

    def __init__(self) -> None:
        self.num_recorded = self.num_paged = self.num_replayed = 0
        self.is_recording = False


def record_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Let steps on a CPU be recorded until the end of a test."""
    recorder = Recorder()

    class Graph(_Graph):
        def __init__(self, *, keep_graph: bool) -> None:
            super().__init__(recorder)

    class Memory(_Memory):
        def __init__(self, _: torch.device) -> None:
            recorder.num_paged += 1

    monkeypatch.setattr(capture, "_is_on_gpu", lambda _: True)
    monkeypatch.setattr(alike, "_is_recording", lambda _: recorder.is_recording)
    monkeypatch.setattr(capture, "_mended", nullcontext)
    monkeypatch.setattr(capture, "PagedMemory", Memory)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: graph.recording())
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(move, "open_streams", lambda _: _AtOnce())
    return recorder


class _Graph:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._noted = _Noted()

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recorder.is_recording = True
        try:
            with self._noted:
                yield
        finally:
            self._recorder.is_recording = False
        self._noted.undo()
        self._recorder.num_recorded += 1

    def replay(self) -> None:
        self._noted.again()
        self._recorder.num_replayed += 1

    def instantiate(self) -> None:
        pass

    def reset(self) -> None:
        self._noted = _Noted()


class _Noted(TorchDispatchMode):
    """Every operation, with what it was given and what it made; all of it stays."""

    def __init__(self) -> None:
        super().__init__()
        self._ops: list[tuple[Any, Any, Any, Any]] = []
        self._made: dict[int, Tensor] = {}  # by storage
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # all that was there, and a copy of it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = _storages((args, kwargs))
        for place, tensor in given.items():
            if place not in self._made and place not in self._before:
                self._before[place] = tensor, tensor.clone()
        made = func(*args, **(kwargs or {}))
        self._made |= {place: each for place, each in _storages(made).items() if place not in given}
        self._ops.append((func, args, kwargs or {}, made))
        return made

    def undo(self) -> None:
        """Leave everything as it was, and what was made without a value."""
        for tensor, before in self._before.values():
            tensor.copy_(before)
        for tensor in self._made.values():
            tensor.fill_(255)  # no small number, for any type, of bytes
        self._before.clear()

    @torch.no_grad()
    def again(self) -> None:
        """Run the operations once more; what they make lies where it did."""
        for func, args, kwargs, made in self._ops:
            given = _storages((args, kwargs))
            found = func(*args, **kwargs)
            for mine, new in zip(tree_leaves(made), tree_leaves(found), strict=True):
                if isinstance(mine, Tensor) and mine.untyped_storage()._cdata not in given:
                    mine.detach().copy_(new)


def _storages(tree: Any) -> dict[int, Tensor]:
    """Return all bytes that tensors lie in, by storage."""
    found = {}
    for each in tree_leaves(tree):
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            found[storage._cdata] = torch.empty(0, dtype=torch.uint8).set_(storage)
    return found


class _Memory:
    """Memory by pages, of which a CPU needs none."""

    held_bytes = 0

    def recording(self, _: Any) -> nullcontext[None]:
        return nullcontext()

    def settle(self, staying: list[Tensor]) -> None:
        assert staying

    def close(self) -> None:
        pass


class _AtOnce:
    """Copies by the thread that asks, where they are seen."""

    def now(self) -> streams.Mark:
        return streams._reached()

    def copy(self, way: str, target: Tensor, source: Tensor, after: Any, *, timed: bool) -> streams.Copy:
        begin = self.now()
        target.copy_(source)
        return streams.Copy(begin if timed else None, self.now())

    def wait(self, mark: streams.Mark, *, timed: bool) -> tuple[streams.Mark, streams.Mark] | None:
        return (self.now(), self.now()) if timed else None

    def join(self) -> None:
        pass

    def close(self) -> None:
        pass
