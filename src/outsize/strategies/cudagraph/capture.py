"""Runs a step as one CUDA graph: its kernels are called one by one a few times, then recorded, then replayed at once.

    steps 1 to 3    as they are: libraries are loaded, kernels chosen and built
    step 4          recorded, which computes nothing, and replayed
    step 5, ...     batch -> memory of the recording | replayed | its gradients -> .grad, its terms copied

For steps of so many short kernels that the host cannot call them as fast as they run. What is recorded are the same
kernels but for the division by totals, which are tensors there, so the answer is the same to rounding. A recording
keeps the memory of its step until it is let go, so there is one at a time: batches of another shape, another output of
the model or other parameters to train are recorded again, a few times. What is recomputed and what is moved is recorded
along, and costs the host nothing either. On a CPU, and where gradients are to be added to, steps run as they are.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.measure.state import Before
from outsize.strategies.compat import ask_no_pool, drop_pool
from outsize.strategies.cudagraph.pages import PagedMemory
from outsize.strategies.step import Step, Terms
from outsize.tiles.window import Window

NUM_PLAIN = 3  # steps before one is recorded
_CORNER_PX = 64  # multiples of which most models work in, and of which each norm has several values
_MOST = 8  # recordings in all: what changes all the time is not worth any


class Beside(Protocol):
    """Copies that run beside a step, in streams of their own."""

    def uncounted(self) -> AbstractContextManager[None]:
        """Count nothing of what runs inside."""

    def before_recording(self) -> None:
        """Let them come to their end: a recording must not wait for what it does not hold."""

    def end_recorded(self) -> None:
        """Let compute wait for all of them, as the last that is recorded: none may be left open."""

    def after_recording(self) -> None:
        """Forget what only the recording may wait for."""

    def replayed(self) -> None:
        """Note that they ran once more."""


class Recordings:
    """The recording of a training: let go where something else needs its memory, it is made again by the next step."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Recording] = {}
        self._is_let_go = False
        # also where nobody lets it go: gradients must not outlive the pages they lie in
        weakref.finalize(self, _finish, self._held).atexit = False

    def let_go(self) -> None:
        """Give its memory back, when the last replay is over."""
        self._is_let_go = self._is_let_go or bool(self._held)
        self.make_room()

    @property
    def held_bytes(self) -> int | None:
        """What the process holds with a recording that has its memory by pages; None: as torch counts."""
        return next((each.memory.held_bytes for each in self._held.values() if each.memory is not None), None)

    def find(self, kind: Hashable) -> _Recording | None:
        """Return the recording of a kind of step, if it is there."""
        return self._held.get(kind)

    def keep(self, kind: Hashable, recording: _Recording) -> None:
        """Hold one."""
        self._held[kind], self._is_let_go = recording, False

    def make_room(self) -> bool:
        """Give the memory of the one before back, and say whether it had not been asked for."""
        _finish(self._held)
        return not self._is_let_go


def _finish(held: dict[Hashable, _Recording]) -> None:
    for each in held.values():
        each.finish()
    held.clear()


def graphed(
    step: Step,
    model: nn.Module,
    tell: Callable[[str], object],
    *,
    beside: Beside | None = None,
    recordings: Recordings | None = None,
    paged: bool = False,
) -> Step:
    """Return the step that is recorded once and replayed; where it cannot be recorded it will `tell` and go on.

    One that is `paged` has no room to run as it is: it is recorded at once, after a step of a corner of the batch, and
    where that fails there is no memory for it. The batch it is recorded with is overwritten by the next ones.
    """
    return _Graphed(step, model, tell, beside, recordings or Recordings(), paged=paged).run


class _Graphed:
    """A step that is recorded after a few."""

    def __init__(
        self,
        step: Step,
        model: nn.Module,
        tell: Callable[[str], object],
        beside: Beside | None,
        recordings: Recordings,
        *,
        paged: bool,
    ) -> None:
        self._step, self._model, self._tell = step, model, tell
        self._beside, self._recordings, self._paged = beside, recordings, paged
        self._num_seen: dict[Hashable, int] = {}
        self._num_recorded = 0

    def run(self, batch: Batch, *, last: bool) -> Terms:
        """Run the step of a batch, one way or the other."""
        # a replay writes its gradients where it always does: it cannot add to others
        if not _is_on_gpu(batch) or any(each.grad is not None for each in self._model.parameters()):
            return self._step(batch, last=last)
        kind = _kind(self._model, batch)
        found = self._recordings.find(kind)
        if found is not None:
            return self._replay(found, batch)
        is_another = self._recordings.make_room()  # also for steps that run as they are
        number = self._num_seen[kind] = self._num_seen.get(kind, 0) + 1
        if self._num_recorded >= _MOST:
            return self._step(batch, last=last)
        if not self._paged and number <= NUM_PLAIN:
            # by this thread alone, as it will be recorded: cuDNN chooses and builds its kernels for each thread,
            # and may wait for the GPU meanwhile
            with torch.autograd.set_multithreading_enabled(False):
                return self._step(batch, last=last)
        self._num_recorded += is_another
        recorded = self._recorded(batch, is_first=number == 1)
        if isinstance(recorded, str):
            self._give_up(recorded)
            return self._step(batch, last=last)
        self._recordings.keep(kind, recorded)
        return self._replay(recorded, batch)

    def _recorded(self, batch: Batch, *, is_first: bool) -> _Recording | str:
        """Record a step, or say why that cannot be."""
        try:
            if self._paged and is_first:
                with nullcontext() if self._beside is None else self._beside.uncounted():
                    _warm(self._step, self._model, batch)
            return _record(self._step, self._model, batch, self._beside, paged=self._paged)
        # an operation that waits for the GPU, no memory to keep, a norm of a single value in a corner
        except (RuntimeError, ValueError) as error:
            return str(error).partition("\n")[0]

    def _give_up(self, reason: str) -> None:
        """Record no more; when the error is gone, for it held the frames of the attempt, and they its tensors."""
        self._num_recorded = _MOST
        self._model.zero_grad(set_to_none=True)
        gc.collect()
        if self._beside is not None:
            self._beside.after_recording()  # again: what the frames held has left marks
        if self._paged:
            raise torch.OutOfMemoryError(f"a step that has room only if it is recorded cannot be: {reason}")
        self._tell(
            f"the step is called kernel by kernel, for it cannot be recorded as one CUDA graph: {reason}"
        )

    def _replay(self, recording: _Recording, batch: Batch) -> Terms:
        if self._beside is not None:
            self._beside.replayed()
        return recording.replay(batch)


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # what it reads; its totals are in `totals`
    totals: Tensor
    terms: Terms  # what it writes
    gradients: tuple[tuple[nn.Parameter, Tensor], ...]
    memory: PagedMemory | None = None  # where it is paged

    def finish(self) -> None:
        torch.cuda.synchronize(self.totals.device)
        if self.memory is not None:
            for parameter, gradient in self.gradients:
                parameter.grad = None if parameter.grad is gradient else parameter.grad
            self.graph.reset()
            self.memory.close()

    def replay(self, batch: Batch) -> Terms:
        for mine, given in zip(self.batch.tensors(), batch.tensors(), strict=True):
            if mine is not given:
                mine.copy_(given, non_blocking=True)
        self.totals.copy_(_listed(batch.totals), non_blocking=True)
        with torch.cuda.device(self.totals.device):
            self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return {name: value.clone() for name, value in self.terms.items()}


def _record(step: Step, model: nn.Module, batch: Batch, beside: Beside | None, *, paged: bool) -> _Recording:
    device = batch.images.device
    # where memory is short the batch itself, into which all others are copied
    mine = batch if paged else batch.each(torch.clone)
    totals = _listed(batch.totals).to(device)
    # tensors in place of numbers, which would be part of the recording
    counts = {name: totals[place] for place, name in enumerate(batch.totals)}
    # other threads bring batches to page-locked memory meanwhile: only what this one calls counts, backward too
    with (
        torch.cuda.device(device),
        torch.autograd.set_multithreading_enabled(False),
        _alone(beside),
        _mended(device) as pool,
        ExitStack() as ends,
    ):
        memory = ends.enter_context(_closed_if_it_fails(PagedMemory(device))) if paged else None
        graph, stream = torch.cuda.CUDAGraph(keep_graph=paged), torch.cuda.Stream(device)
        with (
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
            nullcontext() if memory is None else memory.recording(pool),
        ):
            terms = step(replace(mine, totals=counts), last=True)
            if beside is not None:
                beside.end_recorded()
        gradients = tuple((each, each.grad) for each in model.parameters() if each.grad is not None)
        if memory is not None:
            memory.settle([*terms.values(), *(gradient for _, gradient in gradients)])
            graph.instantiate()
    model.zero_grad(set_to_none=True)
    return _Recording(graph, mine, totals, terms, gradients, memory)


def _warm(step: Step, model: nn.Module, batch: Batch) -> None:
    """Run a step of a corner of each picture, which leaves no trace: libraries are loaded, kernels built."""
    height_px, width_px = (
        min(each, -(-each // 4 // _CORNER_PX) * _CORNER_PX) for each in batch.images.shape[-2:]
    )
    window = Window(0, 0, height_px, width_px)
    corner = batch.crop(window, window).each(Tensor.contiguous)
    before = Before(model)
    before.take()
    try:
        with torch.autograd.set_multithreading_enabled(False):
            step(corner, last=True)
    finally:
        before.give_back()


@contextmanager
def _closed_if_it_fails(memory: PagedMemory) -> Iterator[PagedMemory]:
    try:
        yield memory
    except BaseException:
        memory.close()
        raise


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
        ask_no_pool(index, pool)
        drop_pool(index, pool)
    # the generator waits for numbers of a graph: it gets a state that never knew one
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    generator.set_state(numbers)


def _kind(model: nn.Module, batch: Batch) -> Hashable:
    """Return what steps that can be replayed by the same recording have in common."""
    shapes = tuple((each.shape, each.dtype) for each in batch.tensors())
    trained = tuple(each.requires_grad for each in model.parameters())
    modes = tuple(each.training for each in model.modules())
    return shapes, tuple(batch.totals), trained, modes, getattr(model, "output", None)


def _is_on_gpu(batch: Batch) -> bool:
    return batch.images.device.type == "cuda"


def _listed(totals: Mapping[str, float | Tensor]) -> Tensor:
    values = torch.tensor([float(each) for each in totals.values()], dtype=torch.float32)
    return values.pin_memory() if torch.cuda.is_available() else values
