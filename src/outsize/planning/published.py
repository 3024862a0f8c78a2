"""Steps that others published, predicted for the machines they ran on, with the error; and paced by measurements.

by data sheets     a plain step followed on shapes, on the machine of the catalogue           predicted
swapped            and every saved tensor copied out and in, where that was published
paced              times measured over predicted of that network on another card              ours, or a file of a bench
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outsize.errors import OutsizeError
from outsize.job import Job
from outsize.measurement import MeasuredJob, Measurement
from outsize.planning.following import Followed, PublishedSteps
from outsize.report.published import NAMES, Publication, published


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


def median_error(steps: Iterable[PredictedStep], *, paced: bool = True) -> float | None:
    """Return the median of errors without their signs, paced where there is that; None where nothing is predicted."""
    errors = [each.paced_error if paced and each.paced_s is not None else each.error for each in steps]
    known = [abs(each) for each in errors if each is not None]
    return statistics.median(known) if known else None


def said_of(steps: Sequence[PredictedStep]) -> str:
    """Say how far off predictions are: where the device decides, and where it waits for pictures, too."""
    bound = [each for each in steps if not each.waits]
    return (
        f"median error {_percent(median_error(bound, paced=False))} by data sheets and {_percent(median_error(bound))} "
        f"paced by measurements, of the {len(bound)} published steps that the device bounds; "
        f"{_percent(median_error(steps, paced=False))} and {_percent(median_error(steps))} of all {len(steps)}"
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"


def _of_table(
    table: Publication, measured: Sequence[Measurement], known: Mapping[str, Followed] | None = None
) -> Iterator[PredictedStep]:
    about: Mapping[str, Any] | None = table.facts.get("step")
    if about is None:
        return
    steps = PublishedSteps(table, known)
    pace = _pace(table, steps, measured)
    for row in table.facts["steps"]:
        told = {"model": about["model"]["name"], "machine": row["gpu"], "batch": row["batch"]}
        told |= {"published_s": row["step_s"], "how": row["how"]}
        found = PredictedStep(table.name, waits=about.get("waits", False), why=about.get("off", ""), **told)
        try:
            step = steps.of(row["gpu"], row["batch"])
            copies_s = steps.copies_s(row["gpu"], row["batch"]) if about.get("swaps") else 0.0
        except OutsizeError as error:
            yield replace(found, why=str(error))
            continue
        paced_s = None if pace is None else pace * step.device_s + copies_s
        yield replace(found, predicted_s=step.step_s + copies_s, paced_s=paced_s)


def _pace(table: Publication, steps: PublishedSteps, measured: Sequence[Measurement]) -> float | None:
    """Return how much longer than predicted a device was busy with the network where it was measured: the median.

    What we measured ourselves, in TF32, stands in where no file is given.
    """
    found = []
    for each in measured:
        gpu = each.machine.catalogue
        named = each.job.model == table.facts["step"]["model"]["name"]
        if gpu is None or not named or not _is_alike(each.job, steps.job):
            continue
        precision = "bf16" if each.job.precision == "bf16" else "fp32"
        found += [
            took_s / steps.of(gpu, batch, precision).device_s for batch, took_s in _measured_steps(each)
        ]
    if not found:
        own = table.facts.get("measured", ())
        found = [each["device_s"] / steps.of(each["gpu"], each["batch"]).device_s for each in own]
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
        idle = parts.get("waiting for data", 0.0) + parts.get("launch gaps", 0.0)
        yield measured.job.batch, step_s * (1 - idle)
    elif measured.kind == "batch":
        for row in measured.rows:
            if row.get("step_s"):
                yield row["batch"], row["step_s"]["median"]
