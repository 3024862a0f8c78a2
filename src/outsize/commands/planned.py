"""Reads the plan that a run was trained by."""

from __future__ import annotations

from dataclasses import replace

from outsize.errors import RunError, explain
from outsize.plan.plan import Plan, plan_from_dict
from outsize.runs import RunFolder, read_json


def read_train_plan(run: RunFolder) -> Plan:
    """Return the plan of a run's training; refuse a file that holds none."""
    tree = read_json(run.plan, "plan")
    try:
        return plan_from_dict(tree["train"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found, need = f"{type(error).__name__}: {error}", "the plan that `outsize plan` writes"
        remedy = "run `outsize plan` again with the job of the run"
        raise RunError(explain(f"{run.plan} cannot be understood", found, need, remedy)) from error


def planned_otherwise(run: RunFolder) -> Plan | None:
    """Return the plan that the run was trained by; None where it was the plain step, or is not known."""
    if not run.plan.exists():
        return None
    plan = read_train_plan(run)
    return None if replace(plan.plain(), fuse=None) == plan else plan
