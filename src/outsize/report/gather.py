"""Reads the files of a run folder as far as they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from outsize.accounts import Account, read_accounts
from outsize.files.plain import read_plain_text
from outsize.files.trees import toml_tree
from outsize.job import load_job
from outsize.job.load import MOST_JOB_BYTES
from outsize.measurement import Measurement, read_measurement
from outsize.report.tuned import Tuned, read_tuned
from outsize.runs import RunFolder, as_written, open_run, read_json, read_json_lines

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
    benched: Measurement | None  # of `bench memory`
    scaled: Measurement | None  # of `bench scaling`
    shared: Measurement | None  # of `bench share`
    tuned: Tuned | None  # of `tune`
    accounts: Sequence[Account]  # of all verbs
    usage: Tree  # of the machine, by training and prediction
    schedule: Tree  # of one step in stages

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
    load_job(run.job)  # reports what is wrong with the job
    job_text = read_plain_text(run.job, MOST_JOB_BYTES)
    lines = read_json_lines(run.metrics, "train") if run.metrics.exists() else []
    with as_written(run.metrics, "train"):
        kinds = [line["kind"] for line in lines]
        shares: Tree = next((line["class_shares"] for line in lines if line["kind"] == "classes"), {})
    return Story(
        run=run,
        name=path.resolve().name,
        job_text=job_text,
        job=toml_tree(job_text),
        facts=_read(run.facts, "plan"),
        plans=_read(run.plan, "plan"),
        steps=tuple(line for line, kind in zip(lines, kinds, strict=True) if kind == "step"),
        epochs=tuple(line for line, kind in zip(lines, kinds, strict=True) if kind == "epoch"),
        labelled=shares,
        card=_read(run.best.with_suffix(".json"), "train"),
        scores=_read(run.scores, "evaluate"),
        predicted=_read(run.predictions / "predict.json", "predict"),
        verified=_read(run.verify, "verify"),
        compared=_read(run.comparison, "evaluate"),
        data=_read(run.data, "check"),
        benched=_measured(run.bench / "memory.json"),
        scaled=_measured(run.bench / "scaling.json"),
        shared=_measured(run.bench / "share.json"),
        tuned=read_tuned(run.tune / "trials.json") if (run.tune / "trials.json").exists() else None,
        accounts=read_accounts(run),
        usage=_read(run.path / "usage.json", "train"),
        schedule=_read(run.schedule, "train"),
    )


def _measured(path: Path) -> Measurement | None:
    return read_measurement(path) if path.exists() else None


def _read(path: Path, made_by: str) -> Tree:
    return read_json(path, made_by) if path.exists() else {}
