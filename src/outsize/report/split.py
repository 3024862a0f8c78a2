"""What a training step's time went to: waiting for data, copying, swapping, computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.runs import as_written, read_json_lines
from outsize.units import format_seconds

Record = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """The mean of all steps, in seconds."""

    num_steps: int
    step_s: float
    waiting_s: float  # for the next batch
    copying_s: float  # of the batch to the device
    swapping_s: (
        float  # waits for tensors that come back from host memory; what is copied under kernels costs nothing
    )
    computing_s: float  # the rest

    def parts(self) -> list[tuple[str, float]]:
        """Return the parts with their names."""
        return [
            ("waiting for data", self.waiting_s),
            ("copying", self.copying_s),
            ("swapping", self.swapping_s),
            ("computing", self.computing_s),
        ]

    def line(self) -> str:
        """Say it in one line."""
        shares = ", ".join(f"{name} {seconds / self.step_s:.1%}" for name, seconds in self.parts())
        return f"a step took {format_seconds(self.step_s)}: {shares}"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def split_steps(steps: Sequence[Record], epochs: Sequence[Record]) -> Split | None:
    """Sum up what a training logged of steps and epochs; None where no step was logged."""
    timed = [each for each in steps if each.get("step_s")]
    if not timed:
        return None
    # a logged step stands for all steps since the one logged before it
    step_s, waiting_s, copying_s = (
        sum(each.get(key, 0.0) for each in timed) / len(timed) for key in ("step_s", "wait_s", "copy_s")
    )
    # the steps after the last logged one are in the line that ends their epoch
    num_steps = max(each.get("step", 0) for each in (*steps, *epochs))
    swapping_s = sum(map(_stalled_s, epochs)) / max(1, num_steps)
    computing_s = max(0.0, step_s - waiting_s - copying_s - swapping_s)
    return Split(num_steps, step_s, waiting_s, copying_s, swapping_s, computing_s)


def split_of_run(metrics: Path) -> Split | None:
    """Sum up the steps in a file of metrics."""
    if not metrics.is_file():
        return None
    records = read_json_lines(metrics, "train")
    with as_written(metrics, "train"):
        steps, epochs = ([each for each in records if each["kind"] == kind] for kind in ("step", "epoch"))
        return split_steps(steps, epochs)


def _stalled_s(epoch: Record) -> float:
    """Return how long compute waited for copies in an epoch; a few of its forwards were timed."""
    moved = epoch.get("moved") or {}
    if not moved.get("num_timed"):
        return 0.0
    return float((moved["stall_s"] or 0.0) / moved["num_timed"] * moved["num_forwards"])
