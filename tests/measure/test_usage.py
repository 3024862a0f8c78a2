"""What a verb takes of the machine is counted while it runs, and left in the run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from outsize.measure.usage import _EVERY_S, USAGE, Usage, _look_by_program, watching, write_usage

CPU = torch.device("cpu")


def test_time_load_and_memory_are_those_of_the_block() -> None:
    with watching(CPU, every_s=0.02) as usage:
        held = np.ones(80_000_000, np.uint8)  # seen while it is there
        for _ in range(40):
            held.sum(dtype=np.int64)
        usage.sample()
        del held
        figures = usage.summary(10, images_at_once=2)
    assert figures["s_per_image"] == pytest.approx(figures["seconds"] / 10, rel=1e-2)
    assert 0 < figures["cpu_load"] <= 1.5
    assert figures["host_bytes"] > 80_000_000
    assert (figures["num_gpus"], figures["gpu_use"], figures["gpu_bytes"]) == (0, None, None)
    assert figures["images_per_device"] == 2


def test_no_images_have_no_seconds_each() -> None:
    with watching(CPU) as usage:
        assert usage.summary(0)["s_per_image"] is None


def test_verbs_stand_beside_each_other(tmp_path: Path) -> None:
    write_usage(tmp_path, "train", {"seconds": 2})
    write_usage(tmp_path, "predict", {"seconds": 1})
    assert json.loads((tmp_path / USAGE).read_text()) == {"train": {"seconds": 2}, "predict": {"seconds": 1}}


def test_a_gpu_is_looked_at_by_the_program_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _look_by_program("GPU-1") is None
    for said, wanted in (("81, 11310", (0.81, 11310 << 20)), ("[N/A], 5", (0.0, 0))):
        program.write_text(f"#!/bin/sh\n[ $2 = GPU-1 ] && echo '{said}'\n")
        program.chmod(0o755)
        look = _look_by_program("GPU-1")
        assert look is not None
        assert look() == wanted
        assert _look_by_program("GPU-2")() == (0.0, 0)  # type: ignore[misc]


def test_a_look_costs_under_a_hundredth_of_the_time_between_two() -> None:
    """In seconds of computing, for the host: a busy machine is slower by the clock."""
    usage = Usage(CPU)
    usage.sample()
    began_s = time.process_time()
    for _ in range(20):
        usage.sample()
    assert (time.process_time() - began_s) / 20 < 0.01 * _EVERY_S
