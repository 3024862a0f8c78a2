"""Writes a training's progress: metrics.jsonl, TensorBoard events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from outsize.runs import write_text

LOG_STEPS = 10  # reading a loss makes a GPU wait, so not every step


class TrainingLog:
    """Appends lines while a training runs; opened at a step, it drops what an interrupted run logged after it."""

    def __init__(self, metrics: Path, events: Path, from_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = metrics
        self._keep_until(from_step)
        self._writer = SummaryWriter(str(events), purge_step=from_step or None)

    def line(self, record: Mapping[str, Any]) -> None:
        """Log one record; of the records of steps only each tenth."""
        if record["kind"] == "step" and record["step"] % LOG_STEPS:
            return
        plain = {name: _plain(value) for name, value in record.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")
        for name, value in _scalars(plain):
            self._writer.add_scalar(f"{plain['kind']}/{name}", value, plain["step"])

    def close(self) -> None:
        """Flush TensorBoard's file."""
        self._writer.close()

    def _keep_until(self, step: int) -> None:
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # the line that was being written when the run was killed
            if record["step"] <= step:
                kept.append(line + "\n")
        write_text(self._path, "".join(kept))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _scalars(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    scalars: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            scalars += _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("phase", "epoch", "step"):
            scalars.append((prefix + name, float(value)))
    return scalars
