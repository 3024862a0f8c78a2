"""Predicts the memory and time of a compiled step from a smaller one, for plan_error.py."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch
from plan_error_measured import Case, make_ready, step_seconds
from torch import nn

from outsize.measure.compiled import compiled_saved_bytes
from outsize.plan.compiled import Compiled, blocks_to_compile
from outsize.plan.plan import Compile
from outsize.plan.step import StepFacts

NUM_STEPS = 8
BUDGETS = {"compiled": None, "compiled, half": 0.5}


def try_compiled(model: nn.Module, case: Case, facts: StepFacts, device: torch.device) -> dict[str, Compiled]:
    """Compile the blocks of half the batch, as the planner does with a few samples, and say what that does."""
    smaller = replace(case, batch=max(1, case.batch // 2))
    paths = blocks_to_compile(facts)
    found = {}
    model.to(device)
    plain_s = step_seconds(make_ready(model, smaller, {}, device).run, device, NUM_STEPS)
    for name, budget in BUDGETS.items():
        setting = Compile(paths, budget)
        ready = make_ready(model, smaller, {"compile": setting}, device)
        seconds = step_seconds(ready.run, device, NUM_STEPS)
        num_px = smaller.batch * smaller.side_px**2
        saved = compiled_saved_bytes(ready.run, model, paths, num_px=num_px)
        found[name] = Compiled(setting, saved, seconds / plain_s)
        model.zero_grad(set_to_none=True)
        gc.collect()
    model.to("cpu")
    return found
