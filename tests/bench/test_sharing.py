"""Processes that share a device: each takes its turns, and what sharing costs is what the rounds say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outsize.bench import apart, sharing
from outsize.bench.apart import GivenStep
from outsize.bench.sharing import Portion, Shared, ToShare, as_rows, measure_sharing
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.plan.plan import unplanned
from outsize.progress import Reporter


@pytest.fixture
def given() -> ToShare:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4)
    step = GivenStep("segment", model, TrainSection(batch=2, tile_px=32), 2, 3, "cpu", bf16=False)
    room = Portion(unplanned(), 2**30, 1)
    return ToShare(step, 2, room, replace(room, limit_bytes=2**29))


def test_every_process_takes_its_turns(given: ToShare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "START", "forkserver")
    monkeypatch.setattr(sharing, "TURN_S", 0.0)
    found = measure_sharing(given, rounds=5, max_s=0.0, reporter=Reporter("quiet"))
    for way, num in (("whole", 1), ("alone", 1), ("together", 2)):
        assert [len(each) for each in found.seconds[way]] == [num] * sharing.LEAST_ROUNDS
        assert all(step_s > 0 for took in found.seconds[way] for step_s in took)
        assert found.peaks[way] > 0


def test_what_sharing_costs(given: ToShare) -> None:
    seconds = {"whole": [[1.0], [2.0]], "alone": [[1.1], [2.2]], "together": [[2.0, 3.0], [4.0, 6.0]]}
    used = {"gpu_use": 0.5, "gpu_bytes": 7}
    found = Shared(
        seconds, dict.fromkeys(seconds, 1), {way: [used, {**used, "gpu_use": None}] for way in seconds}
    )
    whole, alone, together = as_rows(found, given)
    assert (whole["processes"], alone["processes"], together["processes"]) == (1, 1, 2)
    assert (whole["limit_bytes"], alone["limit_bytes"]) == (2**30, 2**29)
    assert whole["over_whole"]["median"] == whole["throughput"]["median"] == 1
    assert alone["over_whole"]["median"] == pytest.approx(1.1)
    assert together["over_whole"]["median"] == pytest.approx(2.5)
    assert together["throughput"]["median"] == pytest.approx(1 / 2 + 1 / 3)
    assert together["throughput"]["spread"] == pytest.approx(0)
    assert together["samples_per_s"]["median"] == pytest.approx(2 * (1 / 2 + 1 / 3) * 0.75)
    assert (together["gpu_use"], together["gpu_bytes"]) == (0.5, 7)
