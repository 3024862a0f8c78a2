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
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.times import OpSeconds
from outsize.plan.ways.blocks import Blocks, lies_in, may_run_again, outward, run_again

_LARGEST_SHARE = 1 / 4  # of all saved bytes, that one block may keep
# Of that: when a block's turn comes a step is as full as all of it, so a tight budget asks for small ones.
_SMALLER = (1, 1 / 2, 1 / 4, 1 / 8)
_MOST = 200  # modules that are looked at, those that keep most
# Of what is missing, that blocks free alone; a mix on top frees the rest. More than all of it, for gaps come on top and
# the estimate may be low: what a block recomputes lives otherwise than in the plain step.
_AIMS = (1.0, 1.08, 1.2, 0.75, 0.5)
_LEAST_S = 1e-9

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class _Candidate:
    """One module, and by how much more or less is held during each operation when it runs again."""

    path: str
    kept_bytes: int
    more_bytes: Bytes
    cost_s: float


def some_blocks(
    cost: StepCost,
    op_s: OpSeconds,
    never: Collection[str],
    budget_bytes: float,
    price_s: OpSeconds | None = None,
) -> list[Blocks]:
    """Return sets of blocks that are estimated to keep the budget, a little less than it, or a part of the way to it.

    `price_s` is what it is worth not to run an operation again; by default its time.
    """
    candidates = _candidates(cost, price_s or op_s, never)
    live = np.array(cost.live_bytes(), np.int64)
    missing_bytes = int(live.max(initial=0)) - budget_bytes
    found: list[Blocks] = []
    for aim in _AIMS if missing_bytes > 0 else ():
        chosen = _cheapest(candidates, live, budget_bytes + (1 - aim) * missing_bytes)
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
        if alone.changed.recomputed:
            more_bytes = _more_bytes(cost, alone.changed)
            found.append(_Candidate(path, kept_bytes, more_bytes, max(alone.cost_s, _LEAST_S)))
    return found


def _more_bytes(cost: StepCost, changed: Changed) -> Bytes:
    num_ops = len(cost.facts.ops)
    change = np.zeros(num_ops + 1, np.int64)
    for index in {*changed.recomputed, *changed.held, *changed.twice}:
        storage = cost.by_index[index]
        for sign, spans in ((-1, cost.spans_of(storage, NOTHING)), (1, cost.spans_of(storage, changed))):
            for start, end in spans:
                change[max(0, start)] += sign * storage.size_bytes
                change[min(num_ops, end)] -= sign * storage.size_bytes
    return np.cumsum(change)[:num_ops]


def _enough(candidates: Sequence[_Candidate], plain: Bytes, budget_bytes: float) -> list[_Candidate] | None:
    """Take what frees most for its time where the budget is exceeded, until it is kept; None where it cannot be.

    A whole block may take the place of its parts that were taken before it. What each is worth is looked at again when
    it is the best by what was known of it: others that were taken since leave it less to free.
    """
    by_path = {each.path: each for each in candidates}
    live, taken = plain.copy(), dict[str, _Candidate]()
    over = float(np.maximum(live - budget_bytes, 0).sum())

    def worth(each: _Candidate) -> tuple[float, Bytes]:
        parts = [part for path, part in taken.items() if lies_in(path, each.path)]
        more_bytes = each.more_bytes - sum(part.more_bytes for part in parts)
        cost_s = max(each.cost_s - sum(part.cost_s for part in parts), _LEAST_S)
        return (over - float(np.maximum(live + more_bytes - budget_bytes, 0).sum())) / cost_s, more_bytes

    heap = [(-worth(each)[0], each.path) for each in candidates] if over > 0 else []
    heapify(heap)
    while over > 0:
        if not heap:
            return None
        chosen = by_path[heappop(heap)[1]]
        if lies_in(chosen.path, *taken):
            continue
        gain, more_bytes = worth(chosen)
        if gain <= 0:
            continue
        if heap and gain < -heap[0][0]:
            heappush(heap, (-gain, chosen.path))
            continue
        live += more_bytes
        over = float(np.maximum(live - budget_bytes, 0).sum())
        taken = {path: each for path, each in taken.items() if not lies_in(path, chosen.path)}
        taken[chosen.path] = chosen
        # without this part, a block around it costs less: it may be worth more than before
        for path in outward(chosen.path)[1:]:
            if path in by_path:
                heappush(heap, (-worth(by_path[path])[0], path))
    for each in sorted(taken.values(), key=lambda each: -each.cost_s):  # what it is kept without
        if (live - each.more_bytes).max(initial=0) <= budget_bytes:
            live = live - each.more_bytes
            del taken[each.path]
    return list(taken.values())
