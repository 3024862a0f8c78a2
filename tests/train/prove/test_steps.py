"""A step run two ways: the proof passes where they are the same, and fails where they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from outsize.card import Card
from outsize.data.statistics import BandStatistics
from outsize.job import ClassSpec
from outsize.plan.plan import Offload, Plan, PlannedSwap, Recompute, Swap, Tiling
from outsize.strategies.saved.hooks import recomputable
from outsize.strategies.swap import move
from outsize.train.prove.proofs import StepProof, SwapProof
from outsize.train.prove.steps import prove_step, prove_swap

_PLAN = Plan(purpose="train", batch=2, limit_bytes=1, peak_bytes=1, exact=True, why=())
CARD = Card(
    task="segment",
    model="unet",
    options={},
    classes=tuple(ClassSpec(name=str(value), value=value) for value in range(3)),
    bands=("", ""),
    dtype="uint16",
    statistics=BandStatistics((800.0, 900.0), (300.0, 200.0)),
)


def _proven(plan: Plan) -> StepProof:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Dropout(0.5), nn.Conv2d(4, 3, 3, padding=1))
    model = nn.Sequential(*layers).eval()
    device = torch.device("cpu")
    proof = prove_step(plan, model, CARD, loss="cross_entropy", stride_px=1, device=device)
    assert not model.training
    assert all(each.grad is None and each.dtype == torch.float32 for each in model.parameters())
    return proof


def test_dropout_is_replayed_where_all_is_one_part_and_left_out_where_it_is_not() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Dropout(0.5), nn.Conv2d(4, 3, 3))
    keys = recomputable(model, lambda: model(torch.randn(2, 2, 16, 16)).sum())
    whole = _proven(replace(_PLAN, recompute=Recompute(tuple(sorted(keys)))))
    assert keys
    assert whole.passed
    assert not whole.unmet
    assert not whole.refused
    tiling = Tiling(core_px=512, halo_before_px=(2, 2), halo_after_px=(2, 2), stride_px=1)
    for settings in ({"micro_batches": 2}, {"tiles": tiling}, {"micro_batches": 2, "tiles": tiling}):
        assert _proven(replace(_PLAN, **settings)).passed
    short = replace(tiling, halo_before_px=(1, 2))
    assert not _proven(replace(_PLAN, tiles=short)).passed


# ---- swapped = resident


def _swapped(**more: Any) -> tuple[nn.Module, Plan]:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Dropout(0.5),
        nn.Conv2d(4, 3, 1),
    )
    # sizes of the plan are those of a large window, and mean nothing in a small one
    moved = tuple(PlannedSwap((path, 0, 0), 2**30, None, None) for path in ("2", "4"))
    return nn.Sequential(*layers).eval(), replace(_PLAN, swap=Swap(moved, 2**31), **more)


def _proven_swap(model: nn.Module, plan: Plan) -> SwapProof:
    return prove_swap(plan, model, CARD, loss="cross_entropy", stride_px=1, device=torch.device("cpu"))


@pytest.mark.parametrize("more", [{}, {"micro_batches": 2}, {"recompute": Recompute((("3", 0, 0),))}])
def test_a_step_that_moves_is_the_same_to_the_bit(more: dict[str, Any]) -> None:
    proof = _proven_swap(*_swapped(exact=False, **more))
    assert proof.passed
    assert (proof.apart.largest, proof.tolerance) == (0.0, 0.0)
    assert (proof.num_moved, proof.num_keys) == (2, 2)
    assert "swapped = resident, float64 (2 of 2 planned tensors moved)" in proof.text()
    assert proof.text().endswith("yes")


def test_everything_moved_is_the_same_to_the_bit() -> None:
    model, plan = _swapped()
    proof = _proven_swap(model, replace(plan, swap=Swap((), 1, ahead_bytes=0)))
    assert proof.passed
    assert proof.num_moved > 2
    assert f"all {proof.num_moved} tensors moved" in proof.text()


def test_bytes_that_come_back_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    back = move.MovedStorage.back
    monkeypatch.setattr(move.MovedStorage, "back", lambda self: back(self) * (1 + 2**-52))
    proof = _proven_swap(*_swapped())
    assert not proof.passed
    assert 0 < proof.apart.gradients < 1e-12
    assert proof.text().endswith("NO")


def test_weights_on_the_host_are_proven_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 3, 1)
    ).eval()
    plan = replace(_PLAN, offload=Offload(("0",)))
    device = torch.device("cpu")
    proof = prove_step(plan, model, CARD, loss="cross_entropy", stride_px=1, device=device)
    assert proof.passed
    assert "weights of 1 blocks on the host" in proof.text()
    assert all(type(each) is nn.Parameter for each in model.parameters())
