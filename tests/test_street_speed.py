"""The benchmark of street scenes runs in small, so that no time of a GPU is lost to a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_street_speed(tmp_path: Path) -> None:
    out = tmp_path / "results" / "2026-01-01-cpu-street-speed"
    options = ("--device", "cpu", "--small", "--networks", "erfnet", "--out", str(out))
    command = [sys.executable, str(ROOT / "benchmarks" / "street_speed.py"), *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert done.returncode == 0, done.stderr
    page = out.with_suffix(".md").read_text()
    assert page in done.stdout
    (found,) = json.loads(out.with_suffix(".json").read_text())["networks"]
    assert found["window_px"] == [64, 128]
    assert min(found["on_device"]["ms"].values()) > 0
    assert len(found["end_to_end"]["ratios"]) == 2
    assert all(0 <= share < 1 for share in found["end_to_end"]["waiting"].values())
    assert found["end_to_end"]["copy_ms"] == 0.0  # there is no way to go
