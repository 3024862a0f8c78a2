"""A training killed at any moment and resumed ends with the same bits as one left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def _outcomes(job_path: Path, tmp_path: Path, which: str) -> dict[str, Any]:
    text = job_path.read_text().replace("levels = 3", "levels = 2")
    # steps are logged every tenth and saved every third, so that resuming begins in the middle of an epoch
    job_path.write_text(text.replace("[train]", "[train]\ncheckpoint_steps = 3"))
    command = [
        sys.executable,
        "-m",
        "tests.train.resume_driver",
        str(job_path),
        str(tmp_path / "runs"),
        which,
    ]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert outcomes.pop("undisturbed") == 0
    return outcomes


@pytest.mark.long
def test_resumed_trainings_end_with_the_same_bits(job_path: Path, tmp_path: Path) -> None:
    outcomes = _outcomes(job_path, tmp_path, "points")
    assert len(outcomes) == 23
    for name, outcome in outcomes.items():
        ended = 128 + signal.SIGTERM if name.startswith("stop") else -signal.SIGKILL
        assert outcome == {"killed": ended, "resumed": 0, "differing": []}, name


@pytest.mark.long
def test_trainings_stopped_at_any_moment_end_with_the_same_bits(job_path: Path, tmp_path: Path) -> None:
    outcomes = _outcomes(job_path, tmp_path, "random")
    assert len(outcomes) == 10
    expected = {"killed": 128 + signal.SIGTERM, "resumed": 0, "differing": []}
    assert {name: outcome for name, outcome in outcomes.items() if outcome != expected} == {}
