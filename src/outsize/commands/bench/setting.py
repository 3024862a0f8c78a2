"""What every bench does around its measuring: lay the ground, hold the run, say what was measured on what."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import JobError, explain
from outsize.job import Job, dump_job, load_job
from outsize.job.naming import naming
from outsize.measurement import MeasuredJob, Measurement, write_measurement
from outsize.progress import Reporter
from outsize.runs import (
    RunFolder,
    leaving_no_empty_folder,
    output_errors,
    refuse_foreign,
    working_in,
    write_text,
)

if TYPE_CHECKING:
    import torch

    from outsize.bench.apart import GivenStep
    from outsize.planning.jobs import Planned
    from outsize.planning.situation import Situation


@dataclass(frozen=True)
class Bench:
    """One bench on its course: its job, where it runs, and where its files go."""

    kind: str
    job: Job
    job_path: Path
    device: torch.device
    run: RunFolder
    reporter: Reporter
    began_s: float

    @property
    def target(self) -> Path:
        """The file of the measurement."""
        return self.run.bench / f"{self.kind}.json"

    def measurement(
        self,
        planned: Planned,
        rows: Sequence[Mapping[str, Any]],
        *,
        about: Mapping[str, Any] | None = None,
        num_gpus: int = 1,
    ) -> Measurement:
        """Return what was found, with the machine, the job and the versions that it is of."""
        from outsize.bench.fingerprint import fingerprint_of
        from outsize.measure.origin import origin

        where, limits = planned.where, self.job.limits
        allowed = {"host_memory": limits.host_memory, "gpu_memory": limits.gpu_memory}
        return Measurement(
            kind=self.kind,
            machine=fingerprint_of(self.device, where.machine, where.rates, allowed, num_gpus=num_gpus),
            job=describe(self.job, self.job_path, planned),
            rows=tuple(dict(each) for each in rows),
            took_s=round(time.perf_counter() - self.began_s, 2),
            about=dict(about or {}),
            **origin(),
        )

    def leave(self, measured: Measurement) -> None:
        """Write the measurement; a run that has no job yet gets this one, for a report begins with it."""
        if not self.run.job.exists():
            write_text(self.run.job, dump_job(self.job))
        write_measurement(self.target, measured)


@contextmanager
def benching(
    kind: str,
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    out: Path | None,
    reporter: Reporter,
) -> Iterator[Bench]:
    """Load a job and hold the run in which a bench leaves its files, while the block measures."""
    began_s = time.perf_counter()
    job = load_job(job_path, overrides)
    refuse_without_train(job, job_path)
    from outsize.measure.machine import pick_device

    run = RunFolder(Path(job.run) if out is None else out)
    device = pick_device(device_name)
    refuse_foreign(run)
    with (
        working_in(run, f"bench {kind}", tell=lambda text: reporter.say("lock", text)),
        accounted(run, f"bench {kind}", reporter),
        leaving_no_empty_folder(run.bench),
        naming(job_path),
    ):
        with output_errors(run.bench / f"{kind}.json"):
            run.bench.mkdir(exist_ok=True)  # now: it would be late after minutes of measuring
        yield Bench(kind, job, job_path, device, run, reporter, began_s)


def refuse_without_train(job: Job, job_path: Path) -> None:
    """Refuse a job of which no training step can be made."""
    if "train" not in job.model_fields_set:
        needed = "the batch, window and optimizer of the step to measure"
        remedy = "add a section [train], or give e.g. --set train.batch=4"
        raise JobError(
            explain(f"job {job_path} does not say what is trained", "no section [train]", needed, remedy)
        )


def given_step(bench: Bench, planned: Planned) -> GivenStep:
    """Return the step of the job, as it goes to processes of its own."""
    from outsize.bench.apart import GivenStep

    return GivenStep(
        task=bench.job.task,
        model=planned.model.cpu(),
        section=bench.job.train,
        num_bands=len(planned.bands),
        num_classes=len(bench.job.data.classes),
        device_name=str(bench.device),
        bf16=planned.where.bf16,
    )


def without_limit(job: Job, where: Situation) -> Job:
    """Return the job without its limit for the device, and without a trial of a graph."""
    limits = job.limits.model_copy(update={where.machine.limit_key: None})
    return job.model_copy(update={"limits": limits, "train": job.train.model_copy(update={"graph": False})})


def describe(job: Job, job_path: Path, planned: Planned) -> MeasuredJob:
    """Return what was measured, as a file tells it."""
    where, section = planned.where, job.train
    return MeasuredJob(
        model=job.model.name,
        batch=section.batch,
        side_px=section.tile_px,
        precision="bf16" if where.bf16 else "tf32" if where.tf32 else "fp32",
        task=job.task,
        name=job_path.stem,
        options=dict(job.model.options),
        num_parameters=sum(each.numel() for each in planned.model.parameters()),
        num_bands=len(planned.bands),
        optimizer=section.optimizer,
        loss=section.loss,
        compile=section.compile,
    )


def whole_numbers(option: str, text: str | None, example: str) -> list[int] | None:
    """Read numbers with commas between them, each once and the smallest first; None where none are given."""
    if text is None:
        return None
    parts = listed(text)
    wrong = next((part for part in parts if not part.isdecimal() or not int(part)), None)
    if wrong is not None or not parts:
        needed = "whole numbers above 0 with commas between them"
        raise JobError(
            explain(f"{option} not understood", repr(wrong or text), needed, f"write e.g. {example}")
        )
    return sorted({int(part) for part in parts})


def listed(text: str) -> list[str]:
    """Return what stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
