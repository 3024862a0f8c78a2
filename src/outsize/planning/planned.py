"""Reads the plan that a run was trained by."""

from __future__ import annotations

from dataclasses import replace

from outsize.plan.plan import Plan, plan_from_dict
from outsize.runs import RunFolder, as_written, read_json


def read_train_plan(run: RunFolder) -> Plan:
    """Return the plan of a run's training; refuse a file that holds none."""
    tree = read_json(run.plan, "plan")
    with as_written(run.plan, "plan"):
        return plan_from_dict(tree["train"])


def planned_otherwise(run: RunFolder) -> Plan | None:
    """Return the plan that the run was trained by; None where it was the plain step, or is not known."""
    if not run.plan.exists():
        return None
    plan = read_train_plan(run)
    return None if replace(plan.plain(), fuse=None) == plan else plan
