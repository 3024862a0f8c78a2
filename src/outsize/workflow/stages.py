"""The stages of a workflow: for each job its verbs, what each reads and leaves, and which it comes after.

acquire --> prepare --> train --> predict --> evaluate --> report
network     cores       device    device      device       cores       one at a time of each, of all jobs together
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.errors import JobError, explain
from outsize.job import Job, WorkflowFile, load_job
from outsize.runs import RunFolder

_USES = {"acquire": "network", "prepare": "cores", "report": "cores"}
# sections of a job that do not decide what a verb leaves
_WITHOUT = {
    "train": ("acquire", "prepare", "predict", "published"),
    "predict": ("acquire", "prepare", "train", "published"),
    "evaluate": ("acquire", "prepare", "train", "published"),
    "verify": ("acquire", "prepare"),
    "report": ("acquire", "prepare"),
}


@dataclass(frozen=True)
class WorkflowStage:
    """One verb of one job."""

    name: str  # of the verb; with several jobs JOB:verb
    verb: str
    words: tuple[str, ...]  # of its command line
    after: tuple[str, ...]  # stages that come before it, by name
    settings: str  # a digest of all that a user has said and that decides what it leaves
    inputs: tuple[Path, ...]  # files and folders that it reads
    outputs: tuple[Path, ...]  # and leaves
    run: RunFolder

    @property
    def uses(self) -> str:
        """What it needs for itself."""
        return _USES.get(self.verb, "device")


def stages_of(path: Path, workflow: WorkflowFile) -> list[WorkflowStage]:
    """Return the stages of a workflow file, each after those that it comes after."""
    jobs = {Path(name).stem: path.parent / name for name in workflow.jobs}
    if len(jobs) < len(workflow.jobs):
        found, need = ", ".join(workflow.jobs), "names of their own"
        raise JobError(explain(f"{path} names two jobs alike", found, need, "rename one of them"))
    loaded = {name: load_job(each, workflow.set) for name, each in jobs.items()}
    runs = [job.run for job in loaded.values()]
    if len(set(runs)) < len(runs):
        need, remedy = "a run folder for each job", "set another `run` in one of them"
        raise JobError(explain(f"two jobs of {path} have one run", ", ".join(runs), need, remedy))
    found_stages = []
    for name, job in loaded.items():
        before: tuple[str, ...] = ()
        for stage in _of_job(name if len(jobs) > 1 else "", jobs[name], job, workflow):
            found_stages.append(stage(before))
            before = (found_stages[-1].name,)
    return found_stages


def _of_job(name: str, path: Path, job: Job, workflow: WorkflowFile) -> list[Any]:
    run, overrides = RunFolder(Path(job.run)), [word for each in workflow.set for word in ("--set", each)]
    device, ranks = ("--device", workflow.device), ("--gpus", str(workflow.gpus)) if workflow.gpus else ()
    has = {"acquire": job.acquire is not None, "prepare": job.prepare is not None}
    raw = path.parent / job.acquire.to if job.acquire else None
    made = path.parent / job.prepare.to if job.prepare else None
    data = (made,) if made and has["prepare"] and "prepare" in workflow.stages else data_of(job)
    words: dict[str, Sequence[str]] = {
        "acquire": (str(path), *overrides),
        "prepare": (str(path), *overrides),
        "train": (str(path), *overrides, *device, *ranks),
        "predict": (job.run, "--split", workflow.split, *_told(job), *device, *ranks),
        "evaluate": (job.run, "--split", workflow.split),
        "verify": (job.run, *device),
        "report": (job.run,),
    }
    inputs: dict[str, tuple[Path, ...]] = {
        "acquire": (path.parent / job.acquire.list,) if job.acquire and job.acquire.list else (),
        "prepare": (raw,) if raw and "acquire" in workflow.stages else raw_of(path, job),
        "train": data,
        "predict": (run.best, *data),
        "evaluate": (run.predictions, *data),
        "verify": (run.best,),
        "report": (run.metrics, run.plan, run.scores, run.verify),
    }
    outputs = {
        "acquire": (raw,),
        "prepare": (made,),
        "train": (run.best,),
        "predict": (run.predictions,),
        "evaluate": (run.scores,),
        "verify": (run.verify,),
        "report": (run.report,),
    }

    def stage(verb: str, before: tuple[str, ...]) -> WorkflowStage:
        label = f"{name}:{verb}" if name else verb
        settings = digest_of([_said(job, verb), words[verb], workflow.split])
        left = tuple(each for each in outputs[verb] if each is not None)
        return WorkflowStage(label, verb, (verb, *words[verb]), before, settings, inputs[verb], left, run)

    chosen = [verb for verb in outputs if verb in workflow.stages and has.get(verb, True)]
    return [lambda before, verb=verb: stage(verb, before) for verb in chosen]


def _said(job: Job, verb: str) -> Any:
    tree = job.model_dump(mode="json")
    if verb in ("acquire", "prepare"):
        return [tree[verb], tree["data"] if verb == "prepare" else None]
    return {key: each for key, each in tree.items() if key not in _WITHOUT[verb]}


def _told(job: Job) -> list[str]:
    """Return what a job says of predictions, for a run keeps the job as it was when it was trained."""
    tree = {"predict": job.predict.model_dump(mode="json", exclude_unset=True)}
    tree["limits"] = job.limits.model_dump(mode="json", exclude_unset=True)
    return [word for key, value in _flat("", tree) for word in ("--set", f"{key}={json.dumps(value)}")]


def _flat(key: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(key, value)]
    return [pair for name, each in value.items() for pair in _flat(f"{key}.{name}" if key else name, each)]


def data_of(job: Job) -> tuple[Path, ...]:
    """Return the folders that the data of a job lies in."""
    if job.data.is_dataset:
        return (Path(job.data.root),)
    patterns = (*job.data.images, *job.data.train, *job.data.val, *job.data.test)
    return tuple(dict.fromkeys(fixed_folder(Path(pattern)) for pattern in patterns))


def raw_of(path: Path, job: Job) -> tuple[Path, ...]:
    """Return the folders that the raw files of a job lie in."""
    patterns = job.prepare.images if job.prepare else ()
    return tuple(dict.fromkeys(fixed_folder(path.parent / pattern) for pattern in patterns))


def fixed_folder(pattern: Path) -> Path:
    """Return the folder that a pattern looks in, up to its first star."""
    for parent in reversed(pattern.parents):
        if any(sign in parent.name for sign in "*?["):
            return parent.parent
    return pattern.parent


def digest_of(value: Any) -> str:
    """Return a digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
