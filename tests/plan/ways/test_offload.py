"""Weights on the host: what leaves the device, what comes and goes, and what the link and the host take for it."""

from __future__ import annotations

import pytest

from outsize.plan.cost import StepCost
from outsize.plan.search.timeline import Link
from outsize.plan.step import Saved, StepFacts, StepOp, Storage
from outsize.plan.ways.offload import HOST_BYTES_PER_S, choose_blocks, offloaded

MIB = 2**20
LINK = Link(1e9, 2e9, 0.0)
WEIGHTS = {"a.0.weight": 4 * MIB, "a.1.weight": 2 * MIB, "b.weight": 8 * MIB}
CALLED = ("", "a", "a.0", "a.1", "b")


def _op(index: int, kind: str, module: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> StepOp:
    return StepOp(index, kind, module, 0, kind.endswith("backward"), inputs, outputs, 0, 0, "float32")


def _step(*, bf16: bool = False) -> StepFacts:
    """Two layers with weights of 4 and 8 MiB, one of 1 KiB that stays, activations of 16 MiB, and an optimizer."""
    lives = [
        Storage(0, 4 * MIB, -1, 6, "weight"),
        Storage(1, 8 * MIB, -1, 6, "weight"),
        Storage(2, 1024, -1, 6, "weight"),
        Storage(3, 8 * MIB, -1, 6, "optimizer"),  # two for each weight in truth; sizes tell
        Storage(4, 16 * MIB, 0, 5, "activation"),
        Storage(5, 16 * MIB, 1, 4, "activation"),
        Storage(6, 8 * MIB, 3, 6, "gradient"),
        Storage(7, 4 * MIB, 4, 6, "gradient"),
        Storage(8, 4 * MIB, 2 if bf16 else 5, 5 if bf16 else 6, "activation"),
    ]
    ops = (
        _op(0, "convolution", "a.0", (0, 2), (4,)),
        _op(1, "convolution", "b", (4, 1), (5,)),
        _op(2, "_to_copy", "b", (1,), (8,)) if bf16 else _op(2, "mean", "", (5,), ()),
        _op(3, "convolution_backward", "", (5, 4), (6,)),
        _op(4, "convolution_backward", "", (4, 0), (7,)),
        _op(5, "_foreach_add", "", (0, 1, 3), () if bf16 else (8,)),
    )
    saved = (Saved(("b", 0, 0), 4, 16 * MIB, 1), Saved(("b", 0, 1), 8, 4 * MIB, 2))
    return StepFacts(ops, tuple(lives), saved if bf16 else saved[:1], True, CALLED)


def test_blocks_are_the_outermost_modules_that_hold_little() -> None:
    many = {f"net.{block}.{layer}.weight": MIB for block in range(4) for layer in range(4)}
    layers = [path.removesuffix(".weight") for path in many]
    called = ("", "net", *(f"net.{block}" for block in range(4)), *layers)
    assert choose_blocks(many, called) == tuple(layers)  # a block of four holds a quarter
    twice = {**many, **{f"more.{number}.weight": MIB for number in range(16)}}
    assert choose_blocks(twice, called)[:4] == ("net.0", "net.1", "net.2", "net.3")


def test_a_module_that_cannot_be_cut_is_a_block_however_large() -> None:
    assert choose_blocks(WEIGHTS, CALLED) == ("a.0", "a.1", "b")
    assert choose_blocks(WEIGHTS, ("", "a", "b")) == ("a", "b")


def test_a_module_without_weights_is_no_block() -> None:
    assert choose_blocks({"b.weight": MIB}, (*CALLED, "pool")) == ("b",)


def test_states_leave_the_device_and_three_times_the_largest_block_stays() -> None:
    facts = _step()
    found = offloaded(facts, WEIGHTS, LINK)
    before, after = StepCost(facts), StepCost(found.facts)
    assert before.peak_bytes() >= (4 + 8 + 8 + 16 + 16) * MIB
    assert after.peak_bytes() == pytest.approx((16 + 16 + 3 * 8) * MIB + 1024, abs=2048)
    assert all(op.kind != "_foreach_add" for op in found.facts.ops)
    assert found.setting.blocks == ("a.0", "a.1", "b")


def test_host_memory_holds_weights_and_gradients_in_powers_of_two_and_the_state() -> None:
    found = offloaded(_step(), {**WEIGHTS, "b.more": 5 * MIB}, LINK)
    assert found.setting.host_bytes == 2 * (4 + 2 + 8 + 8) * MIB + 8 * MIB


def test_copies_of_weights_that_autocast_makes_are_not_there() -> None:
    found = offloaded(_step(bf16=True), WEIGHTS, LINK)
    assert {each.index: each.size_bytes for each in found.facts.storages}[8] == 0
    assert [each.storage for each in found.facts.saved] == [4]


def test_weights_come_twice_gradients_leave_beside_backward_and_the_host_computes() -> None:
    weight_s, out_s = 14 * MIB / 2e9, 14 * MIB / 1e9
    host_s = 7 * (2 * 14 + 8) * MIB / HOST_BYTES_PER_S
    assert offloaded(_step(), WEIGHTS, LINK).extra_s == pytest.approx(2 * weight_s + out_s + host_s)
    hidden = offloaded(_step(), WEIGHTS, LINK, backward_s=1.0)
    assert hidden.extra_s == pytest.approx(2 * weight_s + host_s)
    quick = offloaded(_step(), WEIGHTS, LINK, backward_s=1.0, host_bytes_per_s=1e18)
    assert quick.extra_s == pytest.approx(2 * weight_s)


def test_prediction_brings_weights_once_and_keeps_no_states() -> None:
    facts = StepFacts(_step().ops[:3], _step().storages[:6], (), False, CALLED)
    found = offloaded(facts, WEIGHTS, LINK)
    assert found.extra_s == pytest.approx(14 * MIB / 2e9)
    assert found.setting.host_bytes == (4 + 2 + 8) * MIB
    assert max(each.size_bytes for each in found.facts.storages if each.role == "weight") == 8 * MIB
