"""Writes a training's progress: metrics.jsonl, TensorBoard events, and what other trackers keep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from outsize.files.append import append_whole
from outsize.files.plain import read_plain
from outsize.files.trees import MOST_JSON_BYTES, json_tree
from outsize.runs import as_written, output_errors, write_text

LOG_STEPS = 10  # reading a loss makes a GPU wait, so not every step


class Tracker(Protocol):
    """What keeps numbers by their names and steps."""

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log named numbers at a step."""


class TrainingLog:
    """Appends lines while a training runs; opened at a position, it drops what an interrupted run logged after it."""

    def __init__(
        self,
        metrics: Path,
        events: Path,
        *,
        from_step: int,
        from_epoch: int = 0,
        also: Sequence[Tracker] = (),
    ) -> None:
        """Go on after so many steps, and so many epochs that were scored; log `also` with other trackers."""
        self._path = metrics
        self._times: list[dict[str, float]] = []  # of the steps since the last line
        self._keep_until(from_step, from_epoch)
        self._trackers = (_Events(events, from_step), *also)

    def line(self, record: Mapping[str, Any]) -> None:
        """Log one record; of the records of steps only each tenth, with the mean times of all since the last."""
        if record["kind"] == "step":
            self._times.append({name: value for name, value in record.items() if name.endswith("_s")})
            if record["step"] % LOG_STEPS:
                return
            record = {**record, **_means(self._times)}
            self._times = []
        plain = {name: _plain(value) for name, value in record.items()}
        _append(self._path, (json.dumps(plain) + "\n").encode())
        scalars = {f"{plain['kind']}/{name}": value for name, value in _scalars(plain)}
        for tracker in self._trackers:
            tracker.add(plain["step"], scalars)

    def _keep_until(self, step: int, epoch: int) -> None:
        if not self._path.exists():
            return
        kept: dict[tuple[str, int], str] = {}  # of several lines of one epoch the last
        with output_errors(self._path):
            text = read_plain(self._path, MOST_JSON_BYTES).decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines()):
            try:
                record = json_tree(line)
            except ValueError:
                break  # the line that was being written when the run was killed
            with as_written(self._path, "train"):
                # an epoch that was scored and not saved is scored once more, from a state of its last step
                is_epoch = record["kind"] == "epoch"
                if record["step"] <= step and not (is_epoch and record["epoch"] > epoch):
                    kept["epoch" if is_epoch else "line", record["epoch"] if is_epoch else number] = (
                        line + "\n"
                    )
        write_text(self._path, "".join(kept.values()))


class _Events:
    """A TensorBoard event file of scalars.

    Written here and now: torch's SummaryWriter writes from a thread of its own, which tells of a full disk minutes
    late and with a traceback.
    """

    def __init__(self, folder: Path, from_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        # viewers find the file by this name, and read files in the order of their times
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}.outsize"
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if from_step:  # what an interrupted run logged beyond this step is to be hidden
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=from_step, session_log=start))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log named numbers at a step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        from io import BytesIO

        from tensorboard.summary.writer.record_writer import RecordWriter

        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        _append(self._path, record.getvalue())


def _append(path: Path, data: bytes) -> None:
    with output_errors(path):
        append_whole(path, data)


def _means(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in times) / len(times) for name in times[-1]}


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
