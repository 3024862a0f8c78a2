"""Whether a step fits a budget, and by what: predicted from its plan, and measured as the plan runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from outsize.bench.gauge import take_turn, weigh_on_cpu
from outsize.bench.measured_step import batch_bytes, resident_bytes
from outsize.errors import one_line
from outsize.measure.memory import ran_out, sweep
from outsize.measurement import Figure
from outsize.plan.plan import Plan
from outsize.plan.way import Way
from outsize.train.made_up import MadeUpStep

OUT = "out of memory"
FITS = "fits"
_TURNS, _STEPS = 3, 9  # turns of a figure; steps that measuring one takes on a CPU, the weighed one included
# settings of a plan, and what a person calls giving up by them
_WAYS = {
    "recompute": "recompute",
    "swap": "swap",
    "micro_batches": "micro-batches",
    "tiles": "tiles",
    "offload": "weights on the host",
}


def predicted(plan: Plan | None, plain: Way, why: str = "") -> dict[str, Any]:
    """Return what a plan says of a cell of the table; no plan: there is no room, or it does not run."""
    row: dict[str, Any] = {
        "predicted_plain_bytes": plain.peak_bytes,
        "predicted_plain_s": plain.step_s,
        "outcome": OUT,
        "why": why,
    }
    if plan is None:
        return row
    used = [name for key, name in _WAYS.items() if getattr(plan, key) is not None]
    return row | {
        "outcome": " + ".join(used) or FITS,
        "why": plan.why[-1],
        "exact": plan.exact,
        "predicted_peak_bytes": plan.peak_bytes,
        "predicted_step_s": plan.step_s,
        "predicted_over_plain": None if plan.step_s is None else plan.step_s / plain.step_s - 1,
    }


def may_measure(row: Mapping[str, Any], end_s: float) -> bool:
    """Say whether there is time to measure a cell, as long as it is predicted to take."""
    step_s = row.get("predicted_step_s")
    return step_s is not None and time.perf_counter() + _STEPS * step_s < end_s


def measured(made_up: MadeUpStep, plan: Plan, budget_bytes: int) -> dict[str, Any]:
    """Run a step as planned, on a GPU within the budget alone, and return what was seen of it."""
    device = made_up.device
    cap_bytes = budget_bytes if device.type == "cuda" else None
    try:
        run = made_up.runs(made_up.composed(plan))
        turns = [take_turn(run, device, cap_bytes=cap_bytes) for _ in range(_TURNS)]
        peak_bytes = max((each.peak_bytes or 0 for each in turns), default=0)
        if device.type == "cpu":
            peak_bytes = weigh_on_cpu(run, resident_bytes(made_up) + batch_bytes(made_up))
    except (RuntimeError, ValueError) as error:
        made_up.forget()
        sweep(device)
        is_out = isinstance(error, torch.OutOfMemoryError)
        is_out = is_out or (isinstance(error, RuntimeError) and ran_out(error))
        return {"measured_outcome": OUT if is_out else f"does not run: {one_line(error)}"}
    within = peak_bytes <= budget_bytes
    return {
        "measured_outcome": "within" if within else OUT,
        "peak_bytes": peak_bytes,
        "step_s": Figure.of([each.ms / 1e3 for each in turns]).as_dict(),
    }
