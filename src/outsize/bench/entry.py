"""One way in a comparison: what it runs under, and what was seen of it; and its row in the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outsize.bench.gauge import Turn
from outsize.plan.plan import Plan
from outsize.strategies.cudagraph import Recordings
from outsize.strategies.swap import Meter


@dataclass
class Entry:
    """One way on its course through the rounds."""

    name: str
    label: str
    run: Callable[[], object] | None = None  # None: it does not run
    is_plain: bool = False
    is_ours: bool = False
    compiles: bool = False
    share: float | None = None  # of what plain takes beyond what stays
    budget_bytes: int | None = None
    cap_bytes: int | None = None  # of the process, on a GPU; None: none
    plan: Plan | None = None
    meter: Meter = field(default_factory=Meter)  # of what ours moves to host memory
    recordings: Recordings = field(default_factory=Recordings)  # of ours, which keep memory between turns
    notes: list[str] = field(default_factory=list)  # what could not be done as planned
    failed: str | None = None
    is_short: bool = False  # memory ran out, or had to be put together from pieces
    setup_s: float = 0.0  # planning, compiling, first steps
    weighed_bytes: int | None = None  # on a CPU, apart from the clock
    turns: dict[int, Turn] = field(default_factory=dict)  # by round

    @property
    def ms(self) -> float | None:
        """The median time of a step."""
        return statistics.median(each.ms for each in self.turns.values()) if self.turns else None

    @property
    def least_ms(self) -> float | None:
        """The time of a step in the best turn."""
        return min((each.ms for each in self.turns.values()), default=None)

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that tensors took in any turn."""
        return max((each.peak_bytes or 0 for each in self.turns.values()), default=0) or self.weighed_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """The most memory that the allocator held in any turn."""
        return max((each.reserved_bytes or 0 for each in self.turns.values()), default=0) or None

    def over(self, other: Entry) -> float | None:
        """Return the median, over the rounds that both ran in, of the time against another's."""
        both = self.turns.keys() & other.turns.keys()
        return (
            statistics.median(self.turns[each].ms / other.turns[each].ms for each in both) if both else None
        )

    def as_row(self, plain: Entry | None, others: Sequence[Entry]) -> dict[str, Any]:
        """Return the JSON form; `plain` is what it is measured by, `others` what it may be behind of."""
        row: dict[str, Any] = {
            "way": self.name,
            "label": self.label,
            "failed": self.failed,
            "ms": None,
            "over_plain": None,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "cap_bytes": self.cap_bytes,
            "setup_s": round(self.setup_s, 2),
        }
        if self.ms is not None:
            times = {"ms": _rounded(self.ms), "least_ms": _rounded(self.least_ms)}
            row |= {**times, "over_plain": None if plain is None else _rounded(self.over(plain))}
            row["turns"] = {number: asdict(each) for number, each in self.turns.items()}
        if self.is_ours:
            row |= {"share": self.share, "budget_bytes": self.budget_bytes, "notes": self.notes}
            row |= self._foretold()
            counted = self.meter.read()
            row["moved"] = None if counted is None else counted.as_dict()
            row["behind"] = [] if self.failed else [each.label for each in others if self._is_behind(each)]
        return row

    def _foretold(self) -> Mapping[str, Any]:
        """Return what the plan predicts, and by what share of the measured value it is off."""
        if self.plan is None:
            return {"predicted_peak_bytes": None, "predicted_ms": None, "peak_error": None, "ms_error": None}
        ms = None if self.plan.step_s is None else 1e3 * self.plan.step_s
        return {
            "predicted_peak_bytes": self.plan.peak_bytes,
            "predicted_ms": _rounded(ms),
            "peak_error": _error(self.plan.peak_bytes, self.peak_bytes),
            "ms_error": _error(ms, self.ms),
            "plan": self.plan.as_dict(),
        }

    def _is_behind(self, other: Entry) -> bool:
        """Whether another way is faster within the memory that this one was given."""
        if other.is_ours or other.failed:
            return False
        mine, theirs = (self.ms, self.budget_bytes), (other.ms, other.peak_bytes)
        if mine[0] is None or mine[1] is None or theirs[0] is None or theirs[1] is None:
            return False
        return theirs[0] < mine[0] and theirs[1] <= mine[1]


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else _rounded(predicted / measured - 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
