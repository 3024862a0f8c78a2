"""Runs a step as one CUDA graph: its kernels are called one by one a few times, then recorded, then replayed at once.

    steps 1 to 3    as they are: libraries are loaded, kernels chosen and built
    step 4          recorded, which computes nothing, and replayed
    step 5, ...     batch -> memory of the recording | replayed | its gradients -> .grad, its terms copied

For steps of so many short kernels that the host cannot call them as fast as they run. What is recorded are the same
kernels but for the division by totals, which are tensors there, so the answer is the same to rounding. A recording
keeps the memory of its step until it is let go, so there is one at a time: batches of another shape, another output of
the model or other parameters to train are recorded anew, a few times. What is made again and what is moved is recorded
along, and costs the host nothing either. On a CPU, and where gradients are to be added to, steps run as they are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.cuda.memory import (  # type: ignore[attr-defined]
    _cuda_endAllocateToPool,  # as its own use_mem_pool does
    _cuda_releasePool,
)

from outsize.data.batch import Batch
from outsize.strategies.step import Step, Terms

NUM_PLAIN = 3  # steps before one is recorded
_MOST = 8  # recordings in all: what changes all the time is not worth any


class Beside(Protocol):
    """Copies that run beside a step, in streams of their own."""

    def before_recording(self) -> None:
        """Let them come to their end: a recording must not wait for what it does not hold."""

    def end_recorded(self) -> None:
        """Let compute wait for all of them, as the last that is recorded: none may be left open."""

    def after_recording(self) -> None:
        """Forget what only the recording may wait for."""

    def replayed(self) -> None:
        """Note that they ran once more."""


class Recordings:
    """The recording of a training: let go where something else needs its memory, it is made anew by the next step."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Recording] = {}
        self._is_let_go = False

    def let_go(self) -> None:
        """Give its memory back, when the last replay is over."""
        self._is_let_go = self._is_let_go or bool(self._held)
        self.make_room()

    def find(self, kind: Hashable) -> _Recording | None:
        """Return the recording of a kind of step, if it is there."""
        return self._held.get(kind)

    def keep(self, kind: Hashable, recording: _Recording) -> None:
        """Hold one."""
        self._held, self._is_let_go = {kind: recording}, False

    def make_room(self) -> bool:
        """Give the memory of the one before back, and say whether it had not been asked for."""
        for each in self._held.values():
            each.finish()
        self._held.clear()
        return not self._is_let_go


def graphed(
    step: Step,
    model: nn.Module,
    tell: Callable[[str], object],
    *,
    beside: Beside | None = None,
    recordings: Recordings | None = None,
) -> Step:
    """Return the step that is recorded once and replayed; where it cannot be recorded it will `tell` and go on."""
    held = Recordings() if recordings is None else recordings
    seen: dict[Hashable, int] = {}
    num_recorded = 0

    def run(batch: Batch, *, last: bool) -> Terms:
        nonlocal num_recorded
        # a replay writes its gradients where it always does: it cannot add to others
        if not _is_on_gpu(batch) or any(each.grad is not None for each in model.parameters()):
            return step(batch, last=last)
        kind = _kind(model, batch)
        found = held.find(kind)
        if found is not None:
            return replay(found, batch)
        is_another = held.make_room()  # also for steps that run as they are
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= NUM_PLAIN or num_recorded >= _MOST:
            return step(batch, last=last)
        num_recorded += is_another
        try:
            found = _record(step, model, batch, beside)
        except RuntimeError as error:  # an operation that waits for the GPU, or no memory to keep
            reason = str(error).partition("\n")[0]
        else:
            held.keep(kind, found)
            return replay(found, batch)
        # Out here, for the error holds the frames of the attempt, and they hold its tensors.
        num_recorded = _MOST
        model.zero_grad(set_to_none=True)
        gc.collect()
        if beside is not None:
            beside.after_recording()  # again: what the frames held has left marks
        tell(f"the step is called kernel by kernel, for it cannot be recorded as one CUDA graph: {reason}")
        return step(batch, last=last)

    def replay(recording: _Recording, batch: Batch) -> Terms:
        if beside is not None:
            beside.replayed()
        return recording.replay(batch)

    return run


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # what it reads; its totals are in `totals`
    totals: Tensor
    terms: Terms  # what it writes
    gradients: tuple[tuple[nn.Parameter, Tensor], ...]

    def finish(self) -> None:
        torch.cuda.synchronize(self.totals.device)

    def replay(self, batch: Batch) -> Terms:
        for mine, given in zip(_tensors(self.batch), _tensors(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        self.totals.copy_(_listed(batch.totals), non_blocking=True)
        with torch.cuda.device(self.totals.device):
            self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return {name: value.clone() for name, value in self.terms.items()}


def _record(step: Step, model: nn.Module, batch: Batch, beside: Beside | None) -> _Recording:
    device = batch.images.device
    mine = batch.each(torch.clone)
    totals = _listed(batch.totals).to(device)
    # tensors in place of numbers, which would be part of the recording
    counts = {name: totals[place] for place, name in enumerate(batch.totals)}
    # other threads bring batches to page-locked memory meanwhile: only what this one calls counts, backward too
    with (
        torch.cuda.device(device),
        torch.autograd.set_multithreading_enabled(False),
        _alone(beside),
        _mended(device) as pool,
    ):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            terms = step(replace(mine, totals=counts), last=True)
            if beside is not None:
                beside.end_recorded()
    gradients = tuple((each, each.grad) for each in model.parameters() if each.grad is not None)
    model.zero_grad(set_to_none=True)
    return _Recording(graph, mine, totals, terms, gradients)


@contextmanager
def _alone(beside: Beside | None) -> Iterator[None]:
    """Keep what runs beside steps out of a recording, but for what belongs to it."""
    if beside is None:
        yield
        return
    try:
        beside.before_recording()
        yield
    finally:
        beside.after_recording()


@contextmanager
def _mended(device: torch.device) -> Iterator[Any]:
    """Lend a pool of memory to a recording; one that fails leaves torch in the middle of it, which is ended here."""
    pool, numbers = torch.cuda.graph_pool_handle(), torch.cuda.get_rng_state(device)
    stream, done = torch.cuda.current_stream(device), False
    try:
        yield pool
        done = True
    finally:
        if not done:
            _mend(device, pool, stream, numbers)


def _mend(device: torch.device, pool: Any, stream: torch.cuda.Stream, numbers: Tensor) -> None:
    torch.cuda.set_stream(stream)
    index = torch.cuda.current_device()
    with suppress(RuntimeError):  # where torch did that itself
        _cuda_endAllocateToPool(index, pool)
        _cuda_releasePool(index, pool)
    # the generator waits for numbers of a graph: it gets a state that never knew one
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    generator.set_state(numbers)


def _kind(model: nn.Module, batch: Batch) -> Hashable:
    """Return what steps that can be replayed by the same recording have in common."""
    shapes = tuple((each.shape, each.dtype) for each in _tensors(batch))
    trained = tuple(each.requires_grad for each in model.parameters())
    modes = tuple(each.training for each in model.modules())
    return shapes, tuple(batch.totals), trained, modes, getattr(model, "output", None)


def _is_on_gpu(batch: Batch) -> bool:
    return batch.images.device.type == "cuda"


def _tensors(batch: Batch) -> Iterator[Tensor]:
    yield from (batch.images, batch.valid, batch.labels, *batch.maps.values())


def _listed(totals: Mapping[str, float | Tensor]) -> Tensor:
    values = torch.tensor([float(each) for each in totals.values()], dtype=torch.float32)
    return values.pin_memory() if torch.cuda.is_available() else values
