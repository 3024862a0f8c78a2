"""Runs the steps of plan_error.py and measures them: peak memory and what it consists of, and time."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.measure.learning.look import lower_quartile
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing.step import likeliest
from outsize.plan.plan import Plan
from outsize.plan.step import BLOCK_BYTES
from outsize.strategies.compose import Terms, compose
from outsize.strategies.swap.traffic import Meter
from outsize.tasks.segment.terms import count_terms, make_loss_terms
from outsize.train.optimizer import optimizer_of

BANDS, CLASSES, LOSS = 4, 6, "cross_entropy"
MIB, NUM_WARM = 2**20, 2
NUM_TIMED, NUM_FEW, TIMED_S = (
    16,
    6,
    2.0,
)  # steps by the clock: plain, other ways, and fewer where they take long
ADAMW = partial(optimizer_of, name="adamw", lr=1e-4, momentum=0.0, weight_decay=1e-2)


@dataclass(frozen=True)
class Network:
    """A network by name, with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    times: int = 1  # the batch of others


@dataclass(frozen=True)
class Case:
    """What one tracing serves."""

    network: Network
    side_px: int
    batch: int
    bf16: bool
    training: bool


@dataclass(frozen=True)
class Parts:
    """A peak, and what it consists of: there before the step, held when forward has ended, and on top of that."""

    peak_bytes: int
    resident_bytes: int
    turn_bytes: int
    note: str = ""

    def as_mib(self) -> dict[str, float]:
        held_bytes = max(0, self.turn_bytes - self.resident_bytes)
        rest_bytes = self.peak_bytes - self.resident_bytes - held_bytes
        sizes = {"resident": self.resident_bytes, "held by forward": held_bytes, "rest": rest_bytes}
        return {name: round(size / MIB, 2) for name, size in sizes.items()}


@dataclass
class Ready:
    """A step that can be run again and again, and what it leaves to be seen."""

    run: Callable[[], object]
    resident: list[Tensor]
    run_recorded: Callable[[], object] | None = None  # on a GPU, where the step can be
    at_turn: Callable[[], object] = lambda: None  # called when forward has ended
    told: list[str] = field(default_factory=list)


def make_ready(
    model: nn.Module, case: Case, settings: dict[str, Any], device: torch.device, meter: Meter | None = None
) -> Ready:
    """Make the step of a case under the settings of a plan, and run it until it is warm."""
    generator = torch.Generator(device).manual_seed(1)  # there: a host takes seconds for some of these
    images = torch.randn(case.batch, BANDS, case.side_px, case.side_px, generator=generator, device=device)
    model.train(case.training)
    weights = [*model.parameters(), *model.buffers()]
    if not case.training:
        images = images.contiguous(memory_format=torch.channels_last)
        return Ready(partial(_predict_once, model, images, case.bf16), [*weights, images])
    shape = (case.batch, case.side_px, case.side_px)
    labels = torch.randint(0, CLASSES, shape, generator=generator, dtype=torch.uint8, device=device)
    valid = torch.ones(shape, dtype=torch.bool, device=device)
    batch = Batch(images, valid, ClassRasters(labels), count_terms(LOSS, ClassRasters(labels))).to(device)
    terms = make_loss_terms(LOSS, BandStatistics((0.0,) * BANDS, (1.0,) * BANDS))
    plan = Plan(
        purpose="train",
        batch=case.batch,
        limit_bytes=1,
        peak_bytes=1,
        exact=True,
        why=(),
        **settings,
    )

    told: list[str] = []

    def marked(model: nn.Module, batch: Batch) -> Terms:
        found = terms(model, batch)
        ready.at_turn()
        return found

    optimizer = ADAMW(model.parameters())

    def runs(graph: bool) -> Callable[[], None]:
        read = None if graph else meter  # it reads one step, the last that it was given
        step = compose(
            model, marked, replace(plan, graph=graph), bf16=case.bf16, tell=told.append, meter=read
        )

        def run() -> None:
            step(batch, last=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    run = runs(graph=False)
    ready = Ready(run, [*weights, batch.images, batch.valid, batch.targets.labels], told=told)
    ready.run_recorded = runs(graph=True) if device.type == "cuda" and plan.is_recordable else None
    for _ in range(NUM_WARM):
        run()
    ready.resident += [each for entries in optimizer.state.values() for each in entries.values()]
    return ready


def _predict_once(model: nn.Module, images: Tensor, bf16: bool) -> None:
    with torch.no_grad():
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            output = model(images)
        likeliest(output)


def peak_on_cpu(ready: Ready) -> Parts:
    storages = {id(each): each for each in (tensor.untyped_storage() for tensor in ready.resident)}
    resident_bytes = sum(-(-each.nbytes() // BLOCK_BYTES) * BLOCK_BYTES for each in storages.values())
    turn_bytes = [0]
    with LiveBytes(BLOCK_BYTES) as live:
        ready.at_turn = lambda: turn_bytes.append(live.now_bytes)
        ready.run()
    return Parts(resident_bytes + live.peak_bytes, resident_bytes, resident_bytes + turn_bytes[-1])


def peak_on_cuda(ready: Ready, before_bytes: int, device: torch.device, *, look_inside: bool) -> Parts:
    """Measure the peak; a look inside, at what single operations take, costs a slow step more."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    resident_bytes = torch.cuda.memory_allocated(device)
    turn_bytes = [resident_bytes]
    ready.at_turn = lambda: turn_bytes.append(torch.cuda.memory_allocated(device))
    ready.run()
    peak_bytes = torch.cuda.max_memory_allocated(device)
    reserved_bytes = torch.cuda.max_memory_reserved(device)
    note = f"reserved {reserved_bytes / MIB:.0f} MiB"
    if look_inside:
        with torch.autograd.set_multithreading_enabled(False), _Workspace(device) as workspace:
            ready.run()
        note = f"{workspace.note()}; {note}"
    return Parts(
        peak_bytes - before_bytes, resident_bytes - before_bytes, turn_bytes[-1] - before_bytes, note
    )


class _Workspace(TorchDispatchMode):
    """Sees what each operation takes and gives back before it ends: workspace of cuDNN, which no shape tells."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.fullest = (0, "nothing", 0)  # bytes at the peak, operation, workspace
        self.largest = (0, "nothing")

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before_bytes = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        result = func(*args, **(kwargs or {}))
        peak_bytes = torch.cuda.max_memory_allocated(self._device)
        extra_bytes = peak_bytes - max(before_bytes, torch.cuda.memory_allocated(self._device))
        kind = func.overloadpacket.__name__
        self.fullest = max(self.fullest, (peak_bytes, kind, extra_bytes))
        self.largest = max(self.largest, (extra_bytes, kind))
        return result

    def note(self) -> str:
        (_, kind, extra_bytes), (most_bytes, most_kind) = self.fullest, self.largest
        largest = f"largest {most_bytes / MIB:.1f} MiB in {most_kind}"
        return f"at {kind}, workspace {extra_bytes / MIB:.1f} MiB there; {largest}"


def step_seconds(run: Callable[[], object], device: torch.device, num_steps: int) -> float:
    """Return the lower quartile of the times of steps; on a GPU they follow one another without a pause.

    Not the median: a host is shared, and what neighbours take of it comes and goes within seconds.
    """
    if device.type != "cuda":
        start_s = time.perf_counter()
        run()
        return time.perf_counter() - start_s
    gc.collect()
    taken_s: list[float] = []
    while len(taken_s) < num_steps and (len(taken_s) < NUM_FEW or sum(taken_s) < TIMED_S):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(NUM_FEW + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize(device)
        taken_s += [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
    return lower_quartile(taken_s)
