"""Reads the files of a run folder as far as they are there."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from outsize.runs import RunFolder, open_run, read_json

Tree = dict[str, Any]


@dataclass(frozen=True)
class Story:
    """All that a run can tell of itself; what was not done yet is empty."""

    run: RunFolder
    name: str  # what a person calls it
    job_text: str
    job: Tree
    facts: Tree
    plans: Tree
    steps: tuple[Tree, ...]  # logged steps of the training
    epochs: tuple[Tree, ...]  # validations
    labelled: Tree  # share of each class in the labels to train on
    card: Tree
    scores: Tree  # of each split
    predicted: Tree
    verified: Tree
    compared: Tree
    data: Tree  # of `check`
    benched: Tree  # of `bench memory`
    usage: Tree  # of the machine, by training and prediction

    @property
    def colours(self) -> dict[str, tuple[int, int, int]]:
        """Colour of each class."""
        return {each["name"]: tuple(each["colour"]) for each in self.job["data"]["classes"]}

    @property
    def finished(self) -> str:
        """When the best weights were written, else the job."""
        path = self.run.best if self.run.best.exists() else self.run.job
        return datetime.fromtimestamp(path.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def gather(path: Path) -> Story:
    """Read a run; only its job must be there."""
    run = open_run(path)
    job_text = run.job.read_text(encoding="utf-8")
    lines = _lines(run.metrics)
    return Story(
        run=run,
        name=path.resolve().name,
        job_text=job_text,
        job=tomllib.loads(job_text),
        facts=_read(run.facts, "plan"),
        plans=_read(run.plan, "plan"),
        steps=tuple(line for line in lines if line["kind"] == "step"),
        epochs=tuple(line for line in lines if line["kind"] == "epoch"),
        labelled=next((line["class_shares"] for line in lines if line["kind"] == "classes"), {}),
        card=_read(run.best.with_suffix(".json"), "train"),
        scores=_read(run.scores, "evaluate"),
        predicted=_read(run.predictions / "predict.json", "predict"),
        verified=_read(run.verify, "verify"),
        compared=_read(run.comparison, "evaluate"),
        data=_read(run.data, "check"),
        benched=_read(run.bench / "memory.json", "bench memory"),
        usage=_read(run.path / "usage.json", "train"),
    )


def _read(path: Path, made_by: str) -> Tree:
    found: Tree = read_json(path, made_by) if path.exists() else {}
    return found


def _lines(path: Path) -> list[Tree]:
    if not path.exists():
        return []
    # a line without its end was being written when the run was killed
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
    return [json.loads(line) for line in whole]
