"""Steps that others published, predicted for the machines they ran on, with the error; and paced by measurements.

by data sheets     a plain step followed on shapes, on the machine of the catalogue           predicted
paced              the same, times measured over predicted of that network on another card    a file of `outsize bench`
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outsize.errors import OutsizeError
from outsize.job import Job, check_job
from outsize.measurement import MeasuredJob, Measurement
from outsize.plan.ways import plain
from outsize.planning.jobs import train_task
from outsize.planning.situation import situation_named
from outsize.report.published import NAMES, Publication, published
from outsize.tiles.halo import Halo, Reach


@dataclass(frozen=True)
class PredictedStep:
    """One published step of a training, and what is predicted of it."""

    table: str
    model: str
    machine: str
    batch: int
    published_s: float
    how: str  # the time of a step follows from what was printed
    predicted_s: float | None = None
    paced_s: float | None = None  # by a measurement of the same network elsewhere
    waits: bool = False  # the device waited for pictures most of the time, by what was printed
    why: str = ""  # it is not predicted; or is off

    @property
    def error(self) -> float | None:
        """Predicted over published, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.published_s - 1

    @property
    def paced_error(self) -> float | None:
        """The same where it is paced."""
        return None if self.paced_s is None else self.paced_s / self.published_s - 1

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "error": self.error, "paced_error": self.paced_error}


def predict_published(measured: Sequence[Measurement] = ()) -> list[PredictedStep]:
    """Return every published step of which the network and the machine are known."""
    return [step for name in NAMES for step in _of_table(published(name), measured)]


def median_error(steps: Iterable[PredictedStep]) -> float | None:
    """Return the median of errors without their signs, paced where there is that; None where nothing is predicted."""
    errors = [each.paced_error if each.paced_error is not None else each.error for each in steps]
    known = [abs(each) for each in errors if each is not None]
    return statistics.median(known) if known else None


def said_of(steps: Sequence[PredictedStep]) -> str:
    """Say how far off predictions are."""
    bound = [each for each in steps if not each.waits]
    shown = [f"{'none' if error is None else f'{error:.0%}'}" for error in map(median_error, (steps, bound))]
    paced = sum(each.paced_s is not None for each in steps)
    by = "by data sheets alone" if not paced else f"{paced} of them paced by what was measured"
    return (
        f"median error {shown[0]} of {len(steps)} published steps, {by}; "
        f"{shown[1]} of the {len(bound)} that the device bounds"
    )


def _of_table(table: Publication, measured: Sequence[Measurement]) -> Iterator[PredictedStep]:
    about: Mapping[str, Any] | None = table.facts.get("step")
    if about is None:
        return
    seconds = _Seconds(about)
    pace = _pace(about, seconds, measured)
    for row in table.facts["steps"]:
        told = {"model": about["model"]["name"], "machine": row["gpu"], "batch": row["batch"]}
        told |= {"published_s": row["step_s"], "how": row["how"]}
        found = PredictedStep(table.name, waits=about.get("waits", False), why=about.get("off", ""), **told)
        try:
            step_s = seconds.of(row["gpu"], row["batch"])
        except OutsizeError as error:
            yield replace(found, why=str(error))
            continue
        yield replace(found, predicted_s=step_s, paced_s=None if pace is None else pace * step_s)


class _Seconds:
    """Predicts a plain step of one network for any machine and batch; the network is built once."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        from outsize.models import build_model

        model = dict(about["model"])
        self.job = _job(about)
        self._bands = int(about["bands"])
        self._model = build_model(
            model.pop("name"), num_classes=len(self.job.data.classes), in_channels=self._bands, **model
        )

    def of(self, gpu: str, batch: int, precision: str = "fp32") -> float:
        """Return the seconds of a step."""
        section = self.job.train.model_copy(update={"batch": batch, "precision": precision})
        job = self.job.model_copy(update={"train": section})
        where = situation_named(gpu, 1, section.precision)
        halo = Halo(Reach(0, 0), Reach(0, 0), 1)
        return plain(train_task(job, self._model, self._bands, halo, where)).step_s


def _job(about: Mapping[str, Any]) -> Job:
    """Return a job of that step; it names no data, for none is read."""
    classes = [{"name": f"class {number}", "value": number} for number in range(about["classes"])]
    tree = {"task": about["task"], "data": {**about.get("data", {}), "classes": classes}}
    return check_job({**tree, "model": about["model"], "train": about["train"]}, "a published step")


def _pace(about: Mapping[str, Any], seconds: _Seconds, measured: Sequence[Measurement]) -> float | None:
    """Return how much longer than predicted the network takes where it was measured: the median of all files."""
    found = []
    for each in measured:
        gpu = each.machine.catalogue
        if gpu is None or each.job.model != about["model"]["name"] or not _is_alike(each.job, seconds.job):
            continue
        precision = "bf16" if each.job.precision == "bf16" else "fp32"
        found += [took_s / seconds.of(gpu, batch, precision) for batch, took_s in _measured_steps(each)]
    return statistics.median(found) if found else None


def _is_alike(measured: MeasuredJob, job: Job) -> bool:
    """Whether a network was measured on windows of the published size, as far as a file tells."""
    side_px = measured.side_px
    return (list(side_px) if isinstance(side_px, tuple | list) else [side_px] * 2) == list(
        job.train.window_px
    )


def _measured_steps(measured: Measurement) -> Iterator[tuple[int, float]]:
    """Yield batches with the seconds that the device was busy for."""
    if measured.kind == "profile":
        step_s, parts = measured.about["step_s"]["median"], measured.about["parts"]
        yield measured.job.batch, step_s * (1 - parts.get("waiting for data", 0.0))
    elif measured.kind == "batch":
        for row in measured.rows:
            if row.get("step_s"):
                yield row["batch"], row["step_s"]["median"]
