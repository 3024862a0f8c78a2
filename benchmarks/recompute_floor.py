"""The least that recomputing and moving cost within a budget, by a linear program: no plan is faster than this bound.

Each operation of forward is run again to some degree, each saved tensor is dropped or moved to some degree. What is
dropped is made by operations that run again; what these read is kept, or made again itself. Nothing that is made again
takes memory on its way, copies are never waited for, and calls of the host cost nothing: real plans do worse.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from outsize.plan.cost import StepCost
from outsize.plan.memory import find_points
from outsize.plan.search import Link
from outsize.plan.times import Clock

_MOST_MOMENTS = 300  # at which the budget is asked to be kept; fewer only lower the bound


def floor_s(cost: StepCost, clock: Clock, budget_bytes: float) -> float | None:
    """Return the seconds by which a step is longer at the very least; None where nothing keeps the budget."""
    forward = cost.facts.ops[: cost.turn]
    saved = [
        each
        for each in cost.packed
        if each in cost.first_backward and cost.by_index[each].role == "activation" and each in cost.writers
    ]
    place_of = {each: place for place, each in enumerate(saved)}
    movable = {each.storage: each for each in find_points(cost).movable}
    num_ops, num = len(forward), len(saved)
    num_unknown = num_ops + 2 * num  # operations run again; storages dropped; storages moved
    live = np.array(cost.live_bytes(), np.float64)
    moments = np.flatnonzero(live > budget_bytes)
    moments = moments[np.argsort(-live[moments], kind="stable")][:_MOST_MOMENTS]
    if not len(moments):
        return 0.0
    rules: list[tuple[dict[int, float], float]] = []  # sums of unknowns that are at most a number
    for moment in moments:
        freed = {}
        for each, place in place_of.items():
            if cost.let_go[each] <= moment < cost.first_backward[each]:
                size_bytes = float(cost.by_index[each].size_bytes)
                freed[num_ops + place] = -size_bytes
                if each in movable:
                    freed[num_ops + num + place] = -size_bytes
        rules.append((freed, budget_bytes - live[moment]))
    for each, place in place_of.items():
        rules.append(({num_ops + place: 1.0, num_ops + num + place: 1.0}, 1.0))
        rules += [({num_ops + place: 1.0, op.index: -1.0}, 0.0) for op in cost.writers[each]]
    for op in forward:  # what it reads is there, or is made again
        for each in op.inputs:
            if each in cost.writers and each not in place_of and cost.by_index[each].dies <= cost.turn:
                rules += [
                    ({op.index: 1.0, writer.index: -1.0}, 0.0)
                    for writer in cost.writers[each]
                    if writer.index < op.index
                ]
    link = Link.of(clock.rates)
    step_s = clock.step_s(cost.facts.ops)
    seconds = np.zeros(num_unknown)
    seconds[:num_ops] = [clock.again_s(op) for op in forward]
    if link is not None:  # both ways have all of the step, as it is and as it becomes longer
        rate = min(link.to_host_bytes_per_s, link.to_device_bytes_per_s)
        copies = {
            num_ops + num + place: cost.by_index[each].size_bytes / rate for each, place in place_of.items()
        }
        rules.append(({**copies, **{op: -float(seconds[op]) for op in range(num_ops)}}, step_s))
    matrix = lil_matrix((len(rules), num_unknown))
    for row, (terms, _) in enumerate(rules):
        for column, factor in terms.items():
            matrix[row, column] = factor
    found = linprog(seconds, matrix.tocsr(), [most for _, most in rules], bounds=(0, 1), method="highs")
    return float(found.fun) if found.success else None
