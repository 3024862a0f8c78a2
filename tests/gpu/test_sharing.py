"""On a GPU: processes that share it hold no more than their part, and what that costs is measured."""

from __future__ import annotations

import pytest
import torch

from outsize.bench.apart import GivenStep
from outsize.bench.sharing import Portion, ToShare, as_rows, measure_sharing
from outsize.errors import RanksError
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.plan.plan import unplanned
from outsize.progress import Reporter

_GIB = 2**30


def _given(limit_bytes: int) -> ToShare:
    model = build_model("unet", num_classes=3, in_channels=4, levels=4, width=32)
    step = GivenStep("segment", model, TrainSection(batch=4, tile_px=256), 4, 3, "cuda:0", bf16=True)
    return ToShare(step, 2, Portion(unplanned(), 2 * limit_bytes, 1), Portion(unplanned(), limit_bytes, 1))


def test_two_processes_take_turns_on_one_gpu() -> None:
    given = _given(8 * _GIB)
    rows = {
        each["way"]: each
        for each in as_rows(measure_sharing(given, rounds=3, max_s=0.0, reporter=Reporter("quiet")), given)
    }
    print({way: (row["step_s"]["median"], row["throughput"]["median"]) for way, row in rows.items()})
    assert rows["together"]["processes"] == 2
    assert all(0 < row["peak_bytes"] < 8 * _GIB for row in rows.values())
    # two on one GPU make no more than twice what one makes, and no less than half
    assert 0.5 < rows["together"]["throughput"]["median"] < 2.1


def test_a_share_that_is_too_small_is_really_a_cap() -> None:
    assert torch.cuda.is_available()
    with pytest.raises(RanksError, match="a process that measures ended"):
        measure_sharing(_given(64 * 2**20), rounds=3, max_s=0.0, reporter=Reporter("quiet"))
