"""A measurement as values: the machine, the job, the figures with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outsize.units import format_size


@dataclass(frozen=True)
class Figure:
    """A number that was measured several times."""

    median: float
    spread: float  # how far the farthest of the repeats is from the median, as a share of it
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Sum up repeats; there must be one at least."""
        middle = statistics.median(values)
        farthest = max(abs(each - middle) for each in values)
        return cls(middle, farthest / middle if middle else 0.0, len(values))

    def agrees_with(self, other: Figure) -> bool:
        """Say whether two measurements of one thing overlap within their spreads."""
        apart = abs(self.median - other.median)
        return apart <= self.spread * self.median + other.spread * other.median

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Fingerprint:
    """The machine that measured: what it is, what it does in a second, and what could be taken of it."""

    device: str  # "cpu", "cuda:0"
    cpu: str
    num_cores: int
    host_bytes: int  # that the process could have
    gpu: str | None = None  # None: no GPU took part
    gpu_bytes: int | None = None
    num_gpus: int = 0  # that took part
    driver: str | None = None
    # as `Rates` of a plan: arithmetic, memory, the link to the host by one GPU alone, and, where it was measured,
    # while all GPUs copy at once
    rates: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)  # of the job, in bytes by name
    catalogue: str | None = None  # the machine's name in the catalogue, where it has one

    @property
    def name(self) -> str:
        """What computed."""
        return self.gpu or self.cpu or self.device


@dataclass(frozen=True)
class MeasuredJob:
    """The training step that was measured."""

    model: str
    batch: int
    side_px: int | tuple[int, int]
    precision: str
    task: str = ""
    name: str = ""  # of the job's file
    options: dict[str, Any] = field(default_factory=dict)
    num_parameters: int | None = None
    num_bands: int | None = None
    optimizer: str | None = None
    loss: str | None = None
    compile: bool = False

    @property
    def text(self) -> str:
        """Say it in a line."""
        return f"{self.model}, {self.batch} x {format_size(self.side_px)}, {self.precision}"


@dataclass(frozen=True)
class Measurement:
    """Everything that one bench found, enough to set it beside another's."""

    kind: str  # "memory", "batch", "fit", "profile", "scaling", "share"
    machine: Fingerprint
    job: MeasuredJob
    versions: dict[str, str]
    command: str
    when: str
    rows: tuple[
        dict[str, Any], ...
    ]  # what was measured side by side; figures with repeats are a `Figure` as JSON
    folder: str = ""
    took_s: float | None = None  # the bench as a whole
    about: dict[str, Any] = field(default_factory=dict)  # what else this kind tells

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the version of its schema."""
        return asdict(self)
