"""Which blocks are compiled, and what a step in which they are needs and takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from outsize.plan.cost import StepCost
from outsize.plan.plan import Compile, Plan, plan_from_dict
from outsize.plan.step import StepFacts
from outsize.plan.way import Compiled, StepRequest
from outsize.plan.ways.compiled import blocks_to_compile
from outsize.plan.ways.ways import compiled, plain
from outsize.tiles.halo import Halo, Reach

SIDE_PX = 64


@pytest.mark.parametrize("setting", [Compile(("a.b", "c"), 0.5), Compile(("a",))])
def test_the_setting_survives_its_json_form(setting: Compile) -> None:
    plan = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=(), compile=setting)
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_small_blocks_are_taken_whole(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX, num_layers=24)
    assert blocks_to_compile(facts) == tuple(f"block{index}" for index in range(12))


def test_large_blocks_are_taken_apart_down_to_modules_of_single_layers(
    chain: Callable[..., StepFacts],
) -> None:
    facts = chain(1, SIDE_PX, num_layers=4)
    expected = ("block0.layer0", "block0.layer1", "block1.layer0", "block1.layer1")
    assert blocks_to_compile(facts) == expected


def test_a_model_of_single_layers_has_no_blocks(small_step: StepFacts) -> None:
    assert blocks_to_compile(small_step) == ()


@pytest.mark.parametrize(("host_s", "takes_s"), [(0.0, 0.5), (0.1, 0.5), (3.0, 3.0)])
def test_a_compiled_step_takes_as_long_as_the_slower_of_device_and_host(
    chain: Callable[..., StepFacts], host_s: float, takes_s: float
) -> None:
    plain_s = 1.0 / len(chain(4, SIDE_PX).ops)
    tried = Compiled(Compile(("block0",)), 0.5, host_s)
    halo = Halo(Reach(6, 6), Reach(6, 6), 4)
    task = StepRequest(4, SIDE_PX, chain, lambda op: plain_s, halo, host_op_s=1.0, compiled=(tried,))
    (way,) = compiled(task)
    assert way.step_s == pytest.approx(takes_s)
    # a CPU is both: what was seen of it is the share of a whole step
    (on_cpu,) = compiled(replace(task, overlaps=False, compiled=(replace(tried, host_s=0.0),)))
    assert on_cpu.step_s == pytest.approx(0.5 * plain(replace(task, overlaps=False)).step_s)


def test_memory_beyond_what_lasts_is_a_share_of_the_plain_steps(chain: Callable[..., StepFacts]) -> None:
    for num_samples in (1, 4):
        plain = StepCost(chain(num_samples, SIDE_PX))
        rise_bytes = plain.peak_bytes() - plain.lasting_bytes
        half = Compiled(Compile(("block0",)), 1.0, 0.0, memory_share=0.5)
        assert half.peak_bytes(plain) == plain.lasting_bytes + round(0.5 * rise_bytes)
        assert Compiled(Compile(("block0",)), 1.0, 0.0).peak_bytes(plain) == plain.peak_bytes()
