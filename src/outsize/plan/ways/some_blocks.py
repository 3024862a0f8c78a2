"""Chooses among the modules of a model, whole blocks and parts of them, as many to run again as a budget asks for.

A set of all blocks frees whatever there is, and runs forward twice. Where less is missing, those few are taken that
free most in their time, where the step is too full: some blocks as a whole, of others the half between two sums.

    too full      ........######........     live bytes over the budget, by operation
    a block       ....------------......     frees these, for its forward once more
    its half      .....---------........     frees most of these, for less
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.times import OpSeconds
from outsize.plan.ways.blocks import Blocks, lies_in, may_run_again, run_again

_LARGEST_SHARE = 1 / 4  # of all saved bytes, that one block may keep
# Of that: when a block's turn comes a step is as full as all of it, so a tight budget asks for small ones.
_SMALLER = (1, 1 / 2, 1 / 4, 1 / 8)
_MOST = 200  # modules that are looked at, those that keep most
# Of the budget: what a block recomputes lives otherwise than in the plain step, so the estimate may be low.
_AIMS = (1.0, 0.93, 0.85)
_LEAST_S = 1e-9

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class _Candidate:
    """One module, and by how much more or less is held during each operation when it runs again."""

    path: str
    kept_bytes: int
    more_bytes: Bytes
    cost_s: float


def some_blocks(cost: StepCost, op_s: OpSeconds, never: Collection[str], budget_bytes: float) -> list[Blocks]:
    """Return sets of blocks that are estimated to keep the budget, and a little less than it."""
    candidates = _candidates(cost, op_s, never)
    live = np.array(cost.live_bytes(), np.int64)
    found: list[Blocks] = []
    for aim in _AIMS:
        chosen = _cheapest(candidates, live, aim * budget_bytes)
        if chosen and all(set(chosen) != set(each.paths) for each in found):
            found.append(run_again(cost, chosen, op_s))
    return found


def _cheapest(candidates: Sequence[_Candidate], live: Bytes, budget_bytes: float) -> list[str]:
    """Return the set that takes least time, of those from modules of some size or less."""
    most_bytes = max((each.kept_bytes for each in candidates), default=0)
    sets = [
        _enough([each for each in candidates if each.kept_bytes <= share * most_bytes], live, budget_bytes)
        for share in _SMALLER
    ]
    reached = [each for each in sets if each is not None]
    fastest = min(reached, key=lambda each: sum(one.cost_s for one in each), default=[])
    return sorted(each.path for each in fastest)


def _candidates(cost: StepCost, op_s: OpSeconds, never: Collection[str]) -> list[_Candidate]:
    found = []
    for path, kept_bytes in may_run_again(cost, never, _LARGEST_SHARE)[:_MOST]:
        alone = run_again(cost, [path], op_s)
        if alone.changed.anew:
            more_bytes = _more_bytes(cost, alone.changed)
            found.append(_Candidate(path, kept_bytes, more_bytes, max(alone.cost_s, _LEAST_S)))
    return found


def _more_bytes(cost: StepCost, changed: Changed) -> Bytes:
    num_ops = len(cost.facts.ops)
    change = np.zeros(num_ops + 1, np.int64)
    for index in {*changed.anew, *changed.held, *changed.twice}:
        storage = cost.by_index[index]
        for sign, spans in ((-1, cost.spans_of(storage, NOTHING)), (1, cost.spans_of(storage, changed))):
            for start, end in spans:
                change[max(0, start)] += sign * storage.size_bytes
                change[min(num_ops, end)] -= sign * storage.size_bytes
    return np.cumsum(change)[:num_ops]


def _enough(candidates: Sequence[_Candidate], plain: Bytes, budget_bytes: float) -> list[_Candidate] | None:
    """Take what frees most for its time where the budget is exceeded, until it is kept; None where it cannot be.

    A whole block may take the place of its parts that were taken before it.
    """
    live, taken = plain.copy(), dict[str, _Candidate]()
    while (over := float(np.maximum(live - budget_bytes, 0).sum())) > 0:
        best: tuple[float, _Candidate, Bytes] | None = None
        for each in candidates:
            if lies_in(each.path, *taken):
                continue
            parts = [part for path, part in taken.items() if lies_in(path, each.path)]
            more_bytes = each.more_bytes - sum(part.more_bytes for part in parts)
            cost_s = max(each.cost_s - sum(part.cost_s for part in parts), _LEAST_S)
            gain = over - float(np.maximum(live + more_bytes - budget_bytes, 0).sum())
            if gain > 0 and (best is None or gain / cost_s > best[0]):
                best = gain / cost_s, each, more_bytes
        if best is None:
            return None
        _, chosen, more_bytes = best
        live += more_bytes
        taken = {path: each for path, each in taken.items() if not lies_in(path, chosen.path)}
        taken[chosen.path] = chosen
    for each in sorted(taken.values(), key=lambda each: -each.cost_s):  # what it is kept without
        if (live - each.more_bytes).max(initial=0) <= budget_bytes:
            live = live - each.more_bytes
            del taken[each.path]
    return list(taken.values())
