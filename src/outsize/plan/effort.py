"""What is tried before a training begins: of what size, within which memory, for how long, and what is not worth it.

|-- profile: some real steps --|---- trial of a recording ----|  first step
|<---------------------- at most BUDGET_S ------------------->|
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from outsize.plan.machines import CONTEXT_BYTES
from outsize.plan.plan import Plan
from outsize.plan.times import Learnt
from outsize.units import Size, format_bytes, format_count, format_seconds, format_size, sides_of, size_of

# Of the half minute that a user waits before the first step on a GPU: the rest is for opening data, following the model
# on shapes and measuring the machine once.
BUDGET_S = 24.0
# A process with libraries, a GPU's context, kernels that are chosen and built. Half a minute at most where none of it
# is cached; that is what the patience is for.
START_S = 6.0
NUM_WARM = 2  # steps of a profile that load libraries, choose kernels and make the optimizer's state
NUM_TIMED, TIMED_S = 8, 2.0  # steps by the clock, and again on the device alone; fewer where they take long
_NUM_SEEN = 6  # from an empty cache, and under a profiler, where one takes as long as two
TRIAL_STEPS = 3 * 13  # recorded, plain and nudged ones
PATIENCE_S = 180.0  # for a trial without which nothing fits
_LEAST_SIDE_PX = 64
_NO_TIME, _LATER = "for want of time", "the next start tries it"


class Budget:
    """The seconds that may go by before the first step; a clock is given in tests."""

    def __init__(self, seconds: float = BUDGET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = seconds
        self._end_s = clock() + seconds

    @property
    def left_s(self) -> float:
        """What is left of it."""
        return max(0.0, self._end_s - self._clock())


@dataclass(frozen=True)
class Effort:
    """How long may be tried for a training, and how many steps that has."""

    budget: Budget = field(default_factory=Budget)
    num_steps: int | None = None  # None: not known
    max_s: float = math.inf  # by when the job ends the training

    def training_s(self, step_s: float | None) -> float | None:
        """Return how long all steps take; None where that is not known."""
        return None if self.num_steps is None or step_s is None else min(self.max_s, self.num_steps * step_s)


@dataclass(frozen=True)
class TrialStep:
    """A step that would be run to learn from: its size, and what it needs as it is."""

    batch: int
    side_px: Size
    peak_bytes: int
    step_s: float  # predicted

    @property
    def profile_s(self) -> float:
        """What a profile of it takes, about."""
        num_timed = max(2.0, min(NUM_TIMED, TIMED_S / self.step_s)) if self.step_s > 0 else NUM_TIMED
        return START_S + (NUM_WARM + _NUM_SEEN + 2 * num_timed) * self.step_s


def cap_bytes(limit_bytes: int) -> int:
    """Return what torch may hold in a process that is to take no more than a limit: its context counts, too."""
    return max(limit_bytes // 2, limit_bytes - CONTEXT_BYTES)


def sizes(batch: int, side_px: Size) -> Iterator[tuple[int, Size]]:
    """Yield the batch that is asked for, half of it and so on, then smaller windows."""
    yield batch, side_px
    while batch > 1:
        batch = -(-batch // 2)
        yield batch, side_px
    height, width = sides_of(side_px)
    while min(height, width) >= 2 * _LEAST_SIDE_PX and height % 2 == width % 2 == 0:
        height, width = height // 2, width // 2
        yield batch, size_of(height, width)


def samples(
    look: Callable[[int, Size], TrialStep | None],
    batch: int,
    side_px: Size,
    *,
    room_bytes: float,
    time_s: Callable[[], float],
) -> Iterator[TrialStep]:
    """Yield the steps that fit the room and the time that is left, largest first.

    `look` follows a step on shapes; None: the model does not run on that size. The smallest takes whatever time it
    takes, for nothing else would be left to learn from.
    """
    every = list(sizes(batch, side_px))
    for number, (num_samples, window_px) in enumerate(every, start=1):
        found = look(num_samples, window_px)
        if found is None or found.peak_bytes > room_bytes:
            continue
        if found.profile_s <= time_s() or number == len(every):
            yield found


def why_profiled_so(
    learnt: Learnt | None, batch: int, side_px: Size, *, limit_bytes: int, peak_bytes: int | None
) -> str | None:
    """Say of a plan what its times are those of, where it is not a step of its own size; None where it is."""
    if learnt is not None and (learnt.batch, learnt.side_px) == (batch, side_px):
        return None
    fits = peak_bytes is not None and peak_bytes <= limit_bytes
    asked = f"{batch} x {format_size(side_px)}"
    needs = "" if peak_bytes is None else f", which needs {format_bytes(peak_bytes)} as it is"
    reason = _NO_TIME if fits else f"within the limit of {format_bytes(limit_bytes)}"
    if learnt is None:
        return f"no real step was run {reason} ({asked}{needs}): times are those of the machine's rates"
    seen = f"{learnt.batch} x {format_size(learnt.side_px)}"
    return f"times are drawn from a real step of {seen} {reason}, not of {asked}{needs}"


def is_put_off(plan: Plan, note: str) -> bool:
    """Whether time was too short for something that the next start will try: its plan may be another one."""
    return note.find(_NO_TIME) >= 0 or any(_LATER in each.why for each in plan.rejected)


def trial_s(step_s: float) -> float:
    """Return what the trial of a recording takes, about."""
    return START_S + TRIAL_STEPS * step_s


def why_no_trial(effort: Effort, step_s: float | None) -> str | None:
    """Say why a recording is not tried: the training is over sooner, or there is no time left; None: it is."""
    needed_s = trial_s(step_s or 0.0)
    training_s = effort.training_s(step_s)
    if training_s is not None and training_s <= needed_s:
        steps = format_count(effort.num_steps or 0, "step")
        return f"{steps} take {format_seconds(training_s)}, and to try it about {format_seconds(needed_s)}"
    left_s = effort.budget.left_s
    if needed_s > left_s:
        of = f"{format_seconds(left_s)} of {format_seconds(effort.budget.seconds)} are left"
        return f"to try it takes about {format_seconds(needed_s)}, and {of}: {_LATER}"
    return None
