"""Repeats a step that ran out of memory, by a tighter one; nothing of the failed attempt stays.

A process at its limit that finds memory fragmented does not fail at once: torch's allocator waits for the GPU and puts
free memory together again, a hundredth of a second at a time. Where that happens again and again, steps go on by a
tighter one.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.errors import PlanError
from outsize.measure.machine import look_at_machine
from outsize.measure.memory import num_closed_gaps, ran_out
from outsize.measure.state import Before
from outsize.ranks import ALONE, World
from outsize.strategies.blocks import RunsOtherwise
from outsize.strategies.step import Step, Terms

_ASKED = re.compile(r"[Tt]r(?:ied|ying) to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LOOK_EVERY, _MANY = 20, 10  # steps, and gaps closed during them that are worth a tighter plan


@dataclass(frozen=True)
class Shortage:
    """What a step ran out of."""

    wanted_bytes: int  # held when it failed, and what was asked for on top; 0 where that is not known
    available_bytes: int  # that this process could have in all when the attempt was cleared away
    message: str  # torch's own words
    num_closed: int = 0  # gaps closed during steps that did run; 0: one failed


Tighten = Callable[[Shortage], Step]


def recovering(
    step: Step,
    model: nn.Module,
    tighten: Tighten,
    let_go: Callable[[], object] = lambda: None,
    world: World = ALONE,
) -> Step:
    """Return a step that goes on with what `tighten` makes, from the failed batch on, whenever memory runs out.

    Before each step buffers are copied and the state of random numbers is kept; gradients are not, so a step must
    begin without any. `tighten` raises where nothing tighter is left. `let_go` gives back what a recording holds,
    before what is available is looked at. A step in which a block did not run again as it ran first is repeated, too.
    Of ranks all repeat the step that one could not do, by what `tighten` makes of the worst shortage.
    """
    now: Step | None = step
    before, pieces = Before(model), _Pieces()

    def run(batch: Batch, *, last: bool) -> Terms:
        nonlocal now
        # before a step: behind it there are gradients, and another one lets go of the memory that they may lie in
        if world.is_alone:  # else all would have to see it
            now = pieces.avoided(batch.images.device, tighten) or now
        before.take()
        while True:
            assert now is not None, "the step before found nothing tighter"
            try:
                return now(batch, last=last)
            except RunsOtherwise as error:
                message, wanted_bytes = str(error), None
            except RuntimeError as error:
                wanted_bytes = _wanted_bytes(error, batch.images.device)
                message = str(error).partition("\n")[0]
                if world.is_broken_off(error):
                    message = ""
                elif wanted_bytes is None:
                    raise
            # Out here, for the error holds the frames of the attempt, and they hold its tensors.
            if message:
                world.break_off()
            let_go()
            before.give_back()
            shortage = None
            if wanted_bytes is not None:
                available_bytes = _available_bytes(batch.images.device, wanted_bytes)
                shortage = Shortage(wanted_bytes, available_bytes, message)
            elif message:  # the block in question is kept from now on
                warnings.warn(f"{message}; the step is repeated", stacklevel=2)
            shortage = _worst(world, shortage)
            if shortage is None:
                continue
            now = None  # with what it holds of host memory, which the next one may want
            gc.collect()
            now = tighten(shortage)

    return run


def _worst(world: World, mine: Shortage | None) -> Shortage | None:
    """Return the shortage that wants the most and leaves the least, after all ranks have met again."""
    world.renew()
    found = [each for each in world.gather(mine) if each is not None]
    if not found:
        return None
    most = max(found, key=lambda each: each.wanted_bytes)
    return replace(most, available_bytes=min(each.available_bytes for each in found))


class _Pieces:
    """Sees when torch's allocator has to put memory together again and again."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_before: int | None = None  # closed, at the last look
        self._tried_all = False

    def avoided(self, device: torch.device, tighten: Tighten) -> Step | None:
        """Return a tighter step where this one's memory is fragmented; None: go on, if only because there is none."""
        num_done, self._num_steps = self._num_steps, self._num_steps + 1
        if device.type != "cuda" or self._tried_all or num_done == 0 or num_done % _LOOK_EVERY:
            return None
        num_closed = num_closed_gaps(device)
        before, self._num_before = self._num_before, num_closed
        if before is None or num_closed - before < _MANY:  # the first steps fill memory
            return None
        self._num_before = None
        message = f"free memory put together {num_closed - before} times in {_LOOK_EVERY} steps"
        sizes = torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
        try:
            return tighten(Shortage(*sizes, message, num_closed - before))
        except PlanError:
            self._tried_all = True
            return None


def _wanted_bytes(error: RuntimeError, device: torch.device) -> int | None:
    """Return what was held and asked for; None where the error is another one."""
    if not ran_out(error):
        return None
    asked = _ASKED.search(str(error))
    if device.type != "cuda" or asked is None:
        return 0
    return torch.cuda.memory_allocated(device) + int(float(asked[1]) * _UNITS[asked[2]])


def _available_bytes(device: torch.device, wanted_bytes: int) -> int:
    free_bytes = look_at_machine(device).free_bytes
    if device.type == "cuda":
        free_bytes += torch.cuda.memory_reserved(device)
    # a process may be allowed less than is free, and what is free may be fragmented
    return min(free_bytes, wanted_bytes) if wanted_bytes else free_bytes
