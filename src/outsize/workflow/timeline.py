"""What ran from when to when, and what the whole would take if one stage had more of what it uses.

A stage is taken apart into what its workers shared and what nobody shares (loading libraries, planning). Only the
former shrinks, and it shrinks from what it was measured with: a stage that ran on 8 workers has been divided by 8
already, and twice as many workers halve it, no more.

    S = 1 / sum of shares_i / f_i      f_i: how many times as many workers as were measured; at best
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.accounts import read_accounts
from outsize.errors import RunError
from outsize.files.plain import read_plain_text
from outsize.files.trees import json_tree
from outsize.units import format_seconds
from outsize.workflow.stages import WorkflowStage

_MOST_LOG_BYTES = 2**26
_FACTORS = (2, 4, float("inf"))
_WIDTH = 40


@dataclass(frozen=True)
class Lap:
    """One time that a stage ran."""

    name: str
    uses: str
    after: tuple[str, ...]
    began_s: float  # since the workflow began
    seconds: float
    shared_s: float  # of these, what its workers shared
    workers: int  # by so many

    @property
    def end_s(self) -> float:
        """When it ended, since the workflow began."""
        return self.began_s + self.seconds

    @classmethod
    def of(cls, stage: WorkflowStage, began_s: float, seconds: float, log: Path) -> Lap:
        """Take apart what a stage took: as its account in the run says, or as it said at its end."""
        shared_s, num = _shared(stage, log)
        return cls(stage.name, stage.uses, stage.after, began_s, seconds, min(shared_s, seconds), num)

    def scaled_s(self, factor: float) -> float:
        """Return what it would take with so many times as many workers, at best."""
        return self.seconds - self.shared_s + self.shared_s / factor


def _shared(stage: WorkflowStage, log: Path) -> tuple[float, int]:
    try:
        accounts = [each for each in read_accounts(stage.run) if each.verb == stage.verb]
        if accounts and stage.verb not in ("acquire", "prepare"):
            shared = accounts[-1].activities
            return sum(each.seconds for each in shared), max((each.parallel for each in shared), default=1)
        lines = read_plain_text(log, _MOST_LOG_BYTES).splitlines()
    except (OSError, RunError, UnicodeDecodeError):
        return 0.0, 1
    for line in reversed(lines):
        try:
            tree = json_tree(line)
        except ValueError:
            continue
        if isinstance(tree, dict) and "shared_s" in tree:
            return float(tree["shared_s"]), int(tree["workers"])
    return 0.0, 1


def whole_s(laps: Sequence[Lap], factors: Mapping[str, float] | None = None) -> float:
    """Return what all would take with some stages scaled: each begins when those before it are done, as it did then,
    and when what it uses is free."""
    ends: dict[str, float] = {}
    free: dict[str, float] = {}
    for lap in sorted(laps, key=lambda each: each.began_s):
        begins = max([free.get(lap.uses, 0.0), *(ends.get(name, 0.0) for name in lap.after)])
        ends[lap.name] = begins + lap.scaled_s((factors or {}).get(lap.name, 1.0))
        free[lap.uses] = ends[lap.name]
    return max(ends.values(), default=0.0)


def gains(laps: Sequence[Lap]) -> dict[str, dict[float, float]]:
    """Return for each stage how many times as fast all would be with 2, 4 and any number of times as many workers."""
    now_s = whole_s(laps)
    return {
        lap.name: {factor: now_s / max(whole_s(laps, {lap.name: factor}), 1e-9) for factor in _FACTORS}
        for lap in laps
    }


def timeline_lines(laps: Sequence[Lap]) -> list[str]:
    """Draw what ran when, and say what more workers would bring, the most first."""
    total_s = max((lap.end_s for lap in laps), default=0.0)
    if not total_s:
        return ["nothing ran"]
    found = gains(laps)
    width = max(len(lap.name) for lap in laps)
    lines = [
        f"{'stage':{width}}  {'':{_WIDTH}} {'time':>8} {'share':>6}  workers   all of it with x2, x4, any more"
    ]
    for lap in laps:
        first = round(_WIDTH * lap.began_s / total_s)
        length = max(1, round(_WIDTH * lap.seconds / total_s))
        bar = f"{' ' * min(first, _WIDTH - 1)}{'#' * length}"[:_WIDTH]
        rates = ", ".join(f"{rate:.2f}" for rate in found[lap.name].values())
        share = lap.seconds / sum(each.seconds for each in laps)
        taken = format_seconds(lap.seconds)
        lines.append(
            f"{lap.name:{width}}  {bar:{_WIDTH}} {taken:>8} {share:>6.1%}  {lap.workers:>7}   {rates} times"
        )
    best = max(laps, key=lambda lap: found[lap.name][2])
    lines.append(
        f"{format_seconds(total_s)} in all; twice as many workers help most at {best.name}: "
        f"{found[best.name][2]:.2f} times as fast, at best"
    )
    return lines


def as_json(laps: Sequence[Lap]) -> str:
    """Return the timeline as text that programs read."""
    found = gains(laps)
    rows = [
        {
            **vars(lap),
            "times_as_fast": {f"{factor:g}": round(rate, 4) for factor, rate in found[lap.name].items()},
        }
        for lap in laps
    ]
    return json.dumps(
        {"schema": 1, "seconds": max((lap.end_s for lap in laps), default=0.0), "stages": rows}, indent=2
    )
