"""Benchmarks that wait for a GPU run here in small, so that none of its time is lost to a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outsize.measurement import read_measurement

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_all_figures_of_one_gpu_come_in_one_call(tmp_path: Path) -> None:
    left = tmp_path / "kept.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "on_one_gpu.py"), "--small", "--out", str(left)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(left.read_text())}
    assert len(found) == 12
    assert [
        name for name, each in found.items() if each["found"] is None and "%" not in name
    ] == []  # so little may not do
    assert "| first step after, planning | 23.6 s |" in done.stdout


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


def _run(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_gscnn_memory(tmp_path: Path) -> None:
    """Tables, remarks and the published overhead on one page; figures beside it that `compare` reads."""
    small = (
        "--device",
        "cpu",
        "--width",
        "8",
        "--large",
        "0",
        "--sides",
        "64",
        "--rounds",
        "1",
        "--share",
        "100%",
    )
    said = _run("gscnn_memory", *small, "--out", str(tmp_path / "page.md"))
    assert "gscnn, 2 x 64 px" in said
    assert (tmp_path / "page.md").read_text().strip() == said.strip()
    found = read_measurement(tmp_path / "page-64-2.json")
    assert {row["way"] for row in found.rows} >= {"plain", "ours-1"}


@pytest.mark.long
def test_check_speed() -> None:
    assert "s" in _run("check_speed", "64", "200")


@pytest.mark.long
def test_batch_twice(tmp_path: Path, job_path: Path) -> None:
    """Whether the two agree is a matter of the machine; that both are measured is not."""
    words = [str(job_path), str(tmp_path / "runs"), "--batches", "1", "--rounds", "1", "--device", "cpu"]
    command = [sys.executable, str(ROOT / "benchmarks" / "batch_twice.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "| 1 | " in done.stdout
    assert len(read_measurement(tmp_path / "runs/second/bench/batch.json").rows) == 1
