"""The benchmark of any network plans without a GPU, and says what does not fit or cannot be followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_plans_alone(tmp_path: Path) -> None:
    words = [
        "--plan-only",
        "--networks",
        "LSTM",
        "vit_small",
        "maskrcnn",
        "--small",
        "4",
        "--shares",
        "0.5",
        "0.02",
    ]
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "any_network.py"),
        *words,
        "--out",
        str(tmp_path / "a.json"),
    ]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    half = [row for row in rows if row["way"] == "ours, 50%"]
    assert len(half) == 2
    for row in half:
        assert 0.5 < row["used"] <= 1
        assert row["over_plain"] >= 0
        assert row["parts"] != "nothing given up"
    assert all("GiB at least, by" in row["failed"] for row in rows if row["way"] == "ours, 2%")
    assert [row["failed"][:12] for row in rows if "maskrcnn" in row["network"]] == ["not followed"]
    assert "| LSTM-convolution | ours, 50% |" in done.stdout
