"""One trial: the training of its job in a process of its own, watched by what it leaves in its run.

    worker   job.toml --> [ outsize train ] --> metrics.jsonl --> report --> go on, or end it (SIGTERM: it saves)
                                  '--> accounts.jsonl: why it failed, in one line

Its own process, because a trial may take a machine's memory, be killed, or die in a driver; the study goes on.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from outsize.accounts import read_accounts
from outsize.data.feeding import ended_by
from outsize.errors import OutputError, explain, found_in, needed_in
from outsize.runs import RunFolder, output_errors, read_json_lines
from outsize.units import format_bytes, format_count

_LOOK_S = 0.2
_LEAST_FREE_BYTES = 1 << 20  # below, whatever failed is not to be trusted
_DO_NOT_FIT = "PlanError: "
# ends with its worker, which alone knows what it is for; else as `python -m outsize`
_START = (
    "import runpy; from outsize.stopping import end_with_parent; end_with_parent(); "
    "runpy.run_module('outsize', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Ended:
    """How a trial ended: "done", "pruned", "failed", or "stopped" with its worker, to be gone on with."""

    state: str
    score: float | None
    why: str = ""


def run_trial(
    run: RunFolder,
    score_key: str,
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    prunes: Callable[[int, float], bool],
    stops: threading.Event,
) -> Ended:
    """Train the job of a run to its end, or until it is pruned, or all is to stop; `words` are more of its command."""
    job, seen = run.job, _Epochs(run.metrics, score_key)
    # one that was killed before its first state starts over
    words = [*words, "--resume" if run.state.exists() else "--overwrite"]
    command = [sys.executable, "-c", _START, "train", str(job), "--quiet", *words]
    said = run.path / "errors.txt"
    with output_errors(said), said.open("wb+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for the worker, which ends it once
        )
        try:
            is_pruned = _watch(process, seen, prunes, stops)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        line = _last_line(errors)
    for epoch, score in seen.new():  # and those of its last moments
        prunes(epoch, score)
    if process.returncode == 0:
        is_good = seen.best is not None
        return Ended("done", seen.best) if is_good else Ended("failed", None, "no epoch has a score")
    if is_pruned:
        return Ended(
            "pruned",
            seen.best,
            f"worse than half of the others after {format_count(len(seen.scores), 'epoch')}",
        )
    if stops.is_set():
        return Ended("stopped", seen.best)
    return _why_not(run, line or f"ended {ended_by(process.returncode)}", seen.best)


def _watch(
    process: subprocess.Popen[bytes],
    seen: _Epochs,
    prunes: Callable[[int, float], bool],
    stops: threading.Event,
) -> bool:
    """Wait for the end of a training, and return whether it was ended because it is worse than others."""
    while not stops.is_set():
        try:
            process.wait(_LOOK_S)
            return False
        except subprocess.TimeoutExpired:
            pass
        for epoch, score in seen.new():
            if prunes(epoch, score):
                return True
    return False


class _Epochs:
    """The scores in a file of metrics, while it grows."""

    def __init__(self, metrics: Path, key: str) -> None:
        self._metrics, self._key = metrics, key
        self._num_bytes = 0
        self.scores: dict[int, float] = {}

    @property
    def best(self) -> float | None:
        """The best so far."""
        return max(self.scores.values(), default=None)

    def new(self) -> list[tuple[int, float]]:
        """Return the epochs that were scored since the last call."""
        num_bytes = self._metrics.stat().st_size if self._metrics.exists() else 0
        if num_bytes == self._num_bytes:
            return []
        self._num_bytes = num_bytes
        lines = read_json_lines(self._metrics, "train")
        scored = {each["epoch"]: each[self._key] for each in lines if each["kind"] == "epoch"}
        # a model without an answer has no score
        found = [each for each in scored.items() if each[0] not in self.scores and math.isfinite(each[1])]
        self.scores.update(found)
        return found


def _why_not(run: RunFolder, line: str, best: float | None) -> Ended:
    """Return why a training failed: one that does not fit was pruned by the planner, before it ran."""
    free_bytes = shutil.disk_usage(run.path).free
    if free_bytes < _LEAST_FREE_BYTES:  # no fault of its values: it is gone on with when there is room
        found, need = f"{format_bytes(free_bytes)} free", "room for its files"
        remedy = "free space and repeat the command, which goes on with it"
        raise OutputError(explain(f"trial {run.path} ended on a full disk", found, need, remedy))
    accounts = read_accounts(run)
    error = accounts[-1].error if accounts else ""
    if error.startswith(_DO_NOT_FIT):
        return Ended("pruned", None, f"does not fit: {found_in(error)}, of {needed_in(error)}")
    return Ended("failed", best, line.removeprefix("outsize: "))


def _last_line(errors: IO[bytes]) -> str:
    """Return what a process said last."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
