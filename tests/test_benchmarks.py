"""Benchmarks that wait for a GPU run here in small, so that none of its time is lost to a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_recompute_speed(tmp_path: Path) -> None:
    ways = ("plain", "again", "stock", "ours", "checkpoint", "swap", "compiled", "ours-compiled")
    options = ("--device", "cpu", "--quick", "--models", "unet", "--precisions", "tf32", "--ways", *ways)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "recompute_speed.py"),
        "--out",
        str(tmp_path),
        *options,
    ]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert done.returncode == 0, done.stderr
    assert "| ours, all that is cheap | " in done.stdout
    found = json.loads((tmp_path / "recompute_speed.json").read_text())
    (group,) = found["groups"]
    measured = {each["way"]: each for each in group["ways"]}
    assert list(measured) == list(ways)
    assert [name for name, each in measured.items() if "failed" in each] == []
    assert all(each["ms"] > 0 and each["num_steps"] >= 2 for each in measured.values())
    assert measured["plain"]["over_plain"] == 1.0
    assert measured["again"]["freed"] == 0.0
    for name in ("stock", "ours", "checkpoint"):
        assert measured[name]["freed"] > 0.33, name
        assert measured[name]["peak_bytes"] < measured["plain"]["peak_bytes"], name
    for name in ("stock", "ours"):
        assert measured[name]["stats"]["num_recomputed"] == measured[name]["num_keys"] > 0
    made_by = {row["what"].split()[-1]: row["times"] for row in group["extra"]["ours"]["Python functions"]}
    assert made_by  # where our time goes
    page = (tmp_path / "recompute_speed.md").read_text()
    assert "Extra time of ours, all that is cheap: unet, tf32" in page
