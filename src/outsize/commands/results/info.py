"""`outsize info RUN`: what a run is and how far it came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.errors import listed
from outsize.infer.ledger import read_ledger
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, as_written, open_run, read_json, read_json_lines
from outsize.tasks import info_of
from outsize.tasks.info import TaskInfo

_MANY = 4  # names that are listed in full


def info(run_path: Path, reporter: Reporter) -> dict[str, Any]:
    """Report a run's model, plan, training, scores and maps, as far as they are there."""
    run = open_run(run_path)
    job = load_job(run.job)
    task = info_of(job.task)
    options = ", ".join(f"{name} {value}" for name, value in job.model.options.items())
    facts: dict[str, Any] = {
        "run": str(run.path),
        "task": job.task,
        "model": f"{job.model.name}{f' ({options})' if options else ''}",
        "classes": ", ".join(each.name for each in job.data.classes),
    }
    card_path = run.best.with_suffix(".json")
    if card_path.exists():
        card = read_json(card_path, "train")
        with as_written(card_path, "train"):
            trained = card["trained"]
            facts["bands"] = ", ".join(name or "unnamed" for name in card["bands"])
            facts["best weights"] = f"epoch {trained['epoch']}, validation {_best(trained, task)}"
    facts["training"] = _training(run)
    if run.plan.exists():
        plans = read_json(run.plan, "plan")
        with as_written(run.plan, "plan"):
            facts |= {f"plan, {name}": "; ".join(plan["why"]) for name, plan in plans.items()}
    if run.scores.exists():
        scores = read_json(run.scores, "evaluate")
        with as_written(run.scores, "evaluate"):
            facts |= {f"scores, {name}": _score(split, task) for name, split in scores.items()}
    maps = {path.name for path in run.predictions.glob("*.tif")}
    names = sorted(maps | {Path(entry["map"]).name for entry in read_ledger(run.predictions).values()})
    facts["maps"] = ", ".join(names) or "none yet"
    shown = {**facts, "maps": _few(names) or "none yet"}  # a program is given all of them
    width = max(len(name) for name in shown)
    reporter.say("info", "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items()), **facts)
    return facts


def _few(names: Sequence[str]) -> str:
    """List names; of many the first, and how many there are."""
    if len(names) <= _MANY:
        return ", ".join(names)
    return f"{len(names):,}: {listed(names, _MANY)}"


def _best(trained: dict[str, Any], task: TaskInfo) -> str:
    """Say by which score the best weights were chosen."""
    found = trained.get(f"best_{task.score}")
    return "none" if found is None else f"{task.score_name} {found:.4f}"


def _score(figures: Any, task: TaskInfo) -> str:
    """Say the one score of a split that says most."""
    for key in task.in_scores:
        figures = figures[key]
    return "none" if figures is None else f"{task.score_name} {figures}"


def _training(run: RunFolder) -> str:
    if not run.metrics.exists():
        return "not begun"
    lines = read_json_lines(run.metrics, "train")
    with as_written(run.metrics, "train"):
        last = lines[-1] if lines else {"epoch": 0, "step": 0}
        return f"epoch {last['epoch']}, step {last['step']}"
