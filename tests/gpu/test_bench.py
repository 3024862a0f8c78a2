"""On a GPU: a cap takes memory away for real and is lifted again, and ways are measured under it."""

from __future__ import annotations

import pytest
import torch

from outsize.bench.gauge import capped, take_turn
from outsize.bench.measured_step import make_measured_step, resident_bytes
from outsize.bench.memory import Planning, measure_memory
from outsize.errors import PlanError
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.plan.plan import Plan, Recompute
from outsize.progress import Reporter
from outsize.tasks import task_of
from outsize.train.made_up import MadeUpStep

MIB = 2**20
BLOCKS = ("encoder.0", "encoder.1", "bottleneck", "decoder.0", "decoder.1")


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _made_up() -> MadeUpStep:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=4, levels=3, width=16)
    section = TrainSection(batch=4, tile_px=256)
    return make_measured_step(model, task_of("segment"), section, 4, 3, _device(), bf16=True)


def test_memory_beyond_a_cap_is_gone_also_what_was_held_idle() -> None:
    device = _device()
    held = torch.empty(300 * MIB, dtype=torch.uint8, device=device)
    del held  # idle now, and to be had again without asking anybody
    in_use_bytes = torch.cuda.memory_allocated(device)
    with capped(device, in_use_bytes + 200 * MIB):
        torch.empty(100 * MIB, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(250 * MIB, dtype=torch.uint8, device=device)
    torch.empty(250 * MIB, dtype=torch.uint8, device=device)


def test_a_turn_sees_time_and_both_peaks() -> None:
    device = _device()

    def run() -> None:
        torch.empty(64 * MIB, dtype=torch.uint8, device=device).zero_()

    before_bytes = torch.cuda.memory_allocated(device)
    turn = take_turn(run, device)
    assert turn.ms > 0
    assert turn.peak_bytes == before_bytes + 64 * MIB
    assert turn.reserved_bytes is not None
    assert turn.reserved_bytes >= turn.peak_bytes
    assert turn.idle_bytes == before_bytes


def test_ways_are_measured_side_by_side_and_ours_under_its_cap() -> None:
    made_up = _made_up()

    def plan_for(limit_bytes: int) -> Plan:
        if limit_bytes < resident_bytes(made_up) + 20 * MIB:
            raise PlanError("does not fit: found 2, needed 1; take less")
        again = Recompute(blocks=BLOCKS)
        return Plan(
            "train", 4, limit_bytes, limit_bytes, exact=True, why=("blocks",), step_s=1.0, recompute=again
        )

    planning = Planning(plan_for, plain_bytes=1)
    names = ("plain", "again", "save-on-cpu", "move-all", "checkpoint", "ours")
    found = measure_memory(
        made_up, names, (0.9, 0.01), BLOCKS, planning, rounds=3, reporter=Reporter("quiet")
    )
    rows = {each["way"]: each for each in found["rows"]}
    assert [name for name, each in rows.items() if each["failed"]] == ["ours-0.01"]
    plain = rows["plain"]
    assert found["plain"]["way"] == "plain"
    assert found["plain"]["peak_bytes"] == pytest.approx(plain["peak_bytes"], rel=0.01)
    assert abs(rows["again"]["peak_bytes"] / plain["peak_bytes"] - 1) < 0.01
    for name in ("save-on-cpu", "move-all", "checkpoint", "ours-0.9"):
        assert rows[name]["peak_bytes"] < 0.9 * plain["peak_bytes"], name
    ours = rows["ours-0.9"]
    assert ours["reserved_bytes"] <= ours["cap_bytes"]
    assert ours["cap_bytes"] == ours["budget_bytes"]
    assert plain["cap_bytes"] is None
    # nothing that a way has made stays for the next one
    idle_bytes = {turn["idle_bytes"] for turn in plain["turns"].values()}
    assert max(idle_bytes) - min(idle_bytes) < 64 * MIB
