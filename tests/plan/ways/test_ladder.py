"""The way that is taken: plain where it fits, exact before approximate, the fastest of those that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.plan.conftest import WEIGHT_BYTES

from outsize.errors import TraceError
from outsize.plan.cost import StepCost
from outsize.plan.plan import Plan
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepFacts, StepOp, Storage
from outsize.plan.times import CHECKPOINTED_CALLS, REMADE_CALLS, host_calls
from outsize.plan.way import StepRequest, Way
from outsize.plan.ways.ladder import choose, choose_offloaded
from outsize.plan.ways.ways import plain, ways
from outsize.tiles.halo import Halo, Reach
from outsize.units import Size, num_px_of, sides_of

Chain = Callable[..., StepFacts]


@pytest.fixture
def task(chain: Chain) -> StepRequest:
    halo = Halo(Reach(6, 6), Reach(6, 6), 4)
    return StepRequest(4, 64, chain, lambda op: (op.flops + op.moved_bytes) * 1e-9, halo)


@pytest.fixture
def with_norm(task: StepRequest) -> StepRequest:
    return replace(task, across_samples="norm1 looks across", across_pixels="norm1 looks across")


def planned(task: StepRequest, share: float, *, approximate: bool = False) -> Plan | list[Way]:
    limit_bytes = int(plain(task).peak_bytes * share)
    return choose(task, limit_bytes=limit_bytes, budget_bytes=limit_bytes, approximate=approximate)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_batch_that_gpus_share_is_exact_only_where_samples_are_apart(
    task: StepRequest, share: float
) -> None:
    plan = planned(replace(task, spread="norm1 sees one GPU"), share)
    assert isinstance(plan, Plan)  # there is no other way to share it: told, not refused
    assert not plan.exact
    assert plan.why[-1] == "approximate: norm1 sees one GPU"
    apart = planned(task, share)
    assert isinstance(apart, Plan)
    assert apart.exact
    assert replace(plan, exact=True, why=plan.why[:-1]) == apart


def test_blocks_are_looked_at_closely_before_they_are_taken(with_norm: StepRequest, chain: Chain) -> None:
    estimated = [way for way in ways(with_norm, 0) if way.inexact is None]
    least_bytes = min(way.peak_bytes for way in estimated if "blocks" not in way.name)
    choose_within = partial(
        choose, limit_bytes=least_bytes - 1, budget_bytes=least_bytes - 1, approximate=False
    )
    asked: list[tuple[str, ...]] = []

    def traced(facts: StepFacts) -> Callable[[int, int, tuple[str, ...]], StepFacts]:
        def blocks_of(_: int, __: int, blocks: tuple[str, ...]) -> StepFacts:
            asked.append(blocks)
            return facts

        return blocks_of

    taken = choose_within(replace(with_norm, blocks_of=traced(chain(4, 64, num_layers=1))))
    assert isinstance(taken, Plan)
    assert taken.recompute is not None
    assert taken.recompute.blocks in asked
    assert taken.peak_bytes == StepCost(chain(4, 64, num_layers=1)).peak_bytes()
    asked.clear()
    refused = choose_within(replace(with_norm, blocks_of=traced(chain(4, 64))))  # as much as the plain step
    assert isinstance(refused, list)
    # once each, and only what fits by what is worked out from the plain step
    exact = [way for way in refused if way.inexact is None]
    assert 0 < len(asked) == len(set(asked)) <= sum("blocks" in way.name for way in exact)
    assert all(way.confirm is None or way.peak_bytes >= least_bytes for way in exact)
    assert all(way.peak_bytes >= least_bytes for way in exact if "blocks" in way.name)

    def broken(*_: object) -> StepFacts:
        raise TraceError("other tensors the second time")

    failed = choose_within(replace(with_norm, blocks_of=broken))
    assert isinstance(failed, list)
    assert not any(
        "blocks" in way.name and way.peak_bytes < least_bytes for way in failed if way.inexact is None
    )


def test_blocks_and_a_mix_fit_where_neither_does(with_norm: StepRequest, chain: Chain) -> None:
    traced = chain(
        4, 64, num_layers=3
    )  # what is left of the step: less than the whole, and more than the budget
    task = replace(with_norm, blocks_of=lambda *_: traced)
    least_bytes = min(
        way.peak_bytes for way in ways(with_norm, 0) if way.inexact is None and "blocks" not in way.name
    )
    alone_bytes = StepCost(traced).peak_bytes()
    budget_bytes = least_bytes - 1
    assert budget_bytes < alone_bytes
    plan = choose(task, limit_bytes=budget_bytes, budget_bytes=budget_bytes, approximate=False)
    assert isinstance(plan, Plan)
    assert plan.peak_bytes <= budget_bytes
    assert plan.recompute is not None
    assert plan.recompute.blocks
    assert plan.recompute.saved
    assert "blocks such as" in plan.why[1]
    assert "tensors" in plan.why[1]


def test_the_rest_of_a_batch_stays_on_the_device_while_a_part_runs(task: StepRequest, chain: Chain) -> None:
    def with_input(num_samples: int, side_px: int) -> StepFacts:
        facts = chain(num_samples, side_px)
        images = Storage(len(facts.storages), 512 * num_samples * side_px, -1, len(facts.ops), "input")
        return replace(facts, storages=(*facts.storages, images))

    halves = next(way for way in ways(replace(task, step_of=with_input), 0) if way.name == "2 micro-batches")
    alone_bytes = StepCost(with_input(2, 64), is_part=True).peak_bytes()
    assert halves.peak_bytes == alone_bytes + 512 * 2 * 64


def test_what_fits_is_left_alone(with_norm: StepRequest, task: StepRequest, chain: Chain) -> None:
    plan = planned(with_norm, 1.0)
    assert isinstance(plan, Plan)
    assert (plan.recompute, plan.micro_batches, plan.tiles, plan.rejected) == (None, None, None, ())
    assert plan.exact
    assert plan.step_s == pytest.approx(sum(map(task.op_s, chain(4, 64).ops)))


def test_a_little_too_large_recomputes_a_little(
    with_norm: StepRequest, task: StepRequest, chain: Chain
) -> None:
    plan = planned(with_norm, 0.95)
    assert isinstance(plan, Plan)
    assert plan.exact
    assert plan.recompute is not None
    assert plan.peak_bytes <= plan.limit_bytes
    assert plan.step_s is not None
    assert 1.0 < plan.step_s / sum(map(task.op_s, chain(4, 64).ops)) < 1.05
    assert any("needs" in each.why for each in plan.rejected if each.what == "plain")


def test_what_is_approximate_is_not_followed_where_something_exact_will_do(with_norm: StepRequest) -> None:
    followed: set[int] = set()

    def step_of(num_samples: int, side_px: Size) -> StepFacts:
        followed.add(num_samples)
        return with_norm.step_of(num_samples, side_px)

    plan = planned(replace(with_norm, step_of=step_of), 0.95)
    assert isinstance(plan, Plan)
    assert followed == {with_norm.batch}
    reasons = {each.what: each.why for each in plan.rejected}
    assert reasons["micro-batches"] == f"approximate: {with_norm.across_samples}"


def test_blocks_that_fit_by_an_estimate_are_not_enough(with_norm: StepRequest, chain: Chain) -> None:
    task = replace(with_norm, blocks_of=lambda *_: chain(4, 64))  # as much as the plain step
    least_bytes = min(
        way.peak_bytes for way in ways(task, 0) if way.inexact is None and "blocks" not in way.name
    )
    plan = choose(task, limit_bytes=least_bytes - 1, budget_bytes=least_bytes - 1, approximate=True)
    assert isinstance(plan, Plan)
    assert not plan.exact
    assert plan.micro_batches is not None
    assert 0 < plan.peak_bytes < least_bytes


def test_exact_parts_are_followed_also_where_a_mix_fits(task: StepRequest) -> None:
    names = [way.name for way in ways(task, 0.95 * plain(task).peak_bytes)]
    assert "2 micro-batches" in names
    assert any(name.startswith("tiles with a core of") for name in names)
    single = replace(task, batch=1, across_samples="norm1 looks across")
    assert not any("micro-batches" in way.name for way in ways(single, 0.95 * plain(single).peak_bytes))


def test_exact_parts_of_a_batch_cost_nothing_and_are_taken_where_nothing_looks_across(
    task: StepRequest,
) -> None:
    plan = planned(task, 0.6)
    assert isinstance(plan, Plan)
    assert (plan.exact, plan.micro_batches) == (True, 2)


def test_an_approximate_way_is_taken_only_when_allowed(with_norm: StepRequest) -> None:
    refused = planned(with_norm, 0.2)
    assert isinstance(refused, list)
    assert any(way.inexact for way in refused)
    plan = planned(with_norm, 0.2, approximate=True)
    assert isinstance(plan, Plan)
    assert not plan.exact
    assert any(reason == "approximate: norm1 looks across" for reason in plan.why)


def test_one_large_image_is_cut_into_the_largest_tiles_that_fit(task: StepRequest) -> None:
    large = replace(task, batch=1, side_px=256)
    plan = planned(large, 0.3)
    assert isinstance(plan, Plan)
    assert plan.tiles is not None
    assert plan.exact
    assert plan.tiles.core_px % 4 == 0
    assert (plan.tiles.halo_before_px, plan.tiles.halo_after_px) == ((8, 8), (8, 8))
    looser = planned(large, 0.5)
    assert isinstance(looser, Plan)
    assert looser.tiles is None or looser.tiles.core_px >= plan.tiles.core_px


def test_a_window_that_is_no_square_is_cut_into_tiles_as_it_is(task: StepRequest, chain: Chain) -> None:
    asked: list[Size] = []

    def by_pixels(num_samples: int, size_px: Size) -> StepFacts:
        asked.append(size_px)
        return chain(num_samples * num_px_of(size_px), 1)

    flat = replace(task, batch=1, side_px=(64, 256), step_of=by_pixels)
    square = replace(flat, side_px=128)
    assert plain(flat).peak_bytes == plain(square).peak_bytes
    asked.clear()
    plan = planned(flat, 0.5)
    assert isinstance(plan, Plan)
    assert plan.tiles is not None
    assert plan.tiles.core_px < 256
    # tiles are as high as the window and shorter than it is wide, or smaller both ways; never higher than it
    assert all(sides_of(size_px)[0] <= 64 and sides_of(size_px)[1] <= 256 for size_px in asked)
    assert any(sides_of(size_px)[1] < 256 for size_px in asked)


def test_a_part_on_which_the_model_does_not_run_is_rejected_with_the_reason(
    task: StepRequest, chain: Chain
) -> None:
    def fussy(num_samples: int, side_px: int) -> StepFacts:
        if num_samples == 1:
            raise TraceError("one value per channel")
        return chain(num_samples, side_px)

    fussy_task = replace(task, step_of=fussy)
    found = {way.name: way for way in ways(fussy_task, 0)}
    assert found["2 micro-batches"].fails is None
    assert found["4 micro-batches"].fails == "one value per channel"
    assert "4 micro-batches, recompute" not in " ".join(found)
    plan = planned(fussy_task, 0.6)
    assert isinstance(plan, Plan)
    assert plan.micro_batches == 2
    assert "does not run: one value per channel" in [each.why for each in plan.rejected]
    refused = planned(fussy_task, 0.01)
    assert isinstance(refused, list)
    assert all(way.peak_bytes for way in refused)


def test_blocks_free_more_than_tensors_and_cost_more(task: StepRequest, chain: Chain) -> None:
    task = replace(task, batch=1, step_of=partial(chain, num_layers=16))
    found = {way.name.split(" such")[0]: way for way in ways(task, 0.6 * plain(task).peak_bytes)}
    some = next(way for name, way in found.items() if "tensors" in name and name.startswith("recompute"))
    rough = next(way for name, way in found.items() if "blocks" in name and name.startswith("recompute"))
    assert rough.confirm is not None  # which works out what blocks need that run again
    block = rough.confirm()
    first = plain(task)
    assert max(block.peak_bytes, some.peak_bytes) < first.peak_bytes
    assert first.step_s < some.step_s < block.step_s


def test_every_way_counts_its_own_operations(task: StepRequest, chain: Chain) -> None:
    seen: list[StepOp] = []
    counted = replace(task, op_s=lambda op: seen.append(op) or 1e-6)  # type: ignore[func-returns-value]
    (way,) = [way for way in ways(counted, 0) if way.name == "4 micro-batches"]
    assert way.step_s == pytest.approx(4 * len(chain(1, 64).ops) * 1e-6)


def test_a_host_that_is_slower_than_the_device_sets_the_time(task: StepRequest, chain: Chain) -> None:
    num_calls = sum(map(host_calls, chain(4, 64).ops))
    assert plain(replace(task, host_op_s=1.0)).step_s == pytest.approx(num_calls)
    recorded = replace(task, host_op_s=1.0, records=True)  # as one CUDA graph, which is one call
    assert plain(recorded).step_s == plain(replace(task, host_op_s=0.0)).step_s
    both = plain(replace(task, host_op_s=1.0, overlaps=False)).step_s
    assert both == pytest.approx(num_calls + plain(task).step_s)


def test_what_is_made_again_costs_the_host_its_calls_and_python(task: StepRequest, chain: Chain) -> None:
    slow = replace(task, batch=1, step_of=partial(chain, num_layers=16), host_op_s=1.0)
    facts = slow.step_of(1, 64)
    first = plain(slow)
    found = {way.name: way for way in ways(slow, 0) if way.name.startswith("recompute")}
    some = next(way for name, way in found.items() if "tensors" in name)
    num_tensors = int(some.name.split()[1])
    again = some.step_s - first.step_s
    assert again >= num_tensors * (REMADE_CALLS + 1)  # each is made by one operation at least
    for way in (way for name, way in found.items() if "blocks" in name):
        inside = tuple(f"{path}." for path in way.settings["recompute"].blocks)
        forward = [op for op in facts.ops if not op.backward and f"{op.module}.".startswith(inside)]
        kept = sum(f"{each.key[0]}.".startswith(inside) for each in facts.saved)
        calls = sum(map(host_calls, forward)) + CHECKPOINTED_CALLS * kept
        assert way.step_s - first.step_s == pytest.approx(calls)


def test_the_optimizer_comes_once_however_many_parts_there_are(task: StepRequest, chain: Chain) -> None:
    def with_optimizer(num_samples: int, side_px: int) -> StepFacts:
        facts = chain(num_samples, side_px)
        last = StepOp(len(facts.ops), "_foreach_mul_", "", 0, False, (0,), (0,), 0, 10**9, "float32")
        return replace(facts, ops=(*facts.ops, last))

    counted = replace(task, step_of=with_optimizer, op_s=lambda op: 1.0)
    (way,) = [way for way in ways(counted, 0) if way.name == "4 micro-batches"]
    assert way.step_s == pytest.approx(4 * len(chain(1, 64).ops) + 1)


def test_recipes_go_by_the_time_to_make_a_result_again(task: StepRequest) -> None:
    costly = replace(task, again_s=lambda op: 1e6)
    some = [way for way in ways(costly, 0) if "tensors" in way.name]
    assert some
    assert all(way.step_s > 1e6 for way in some)


def test_what_does_not_fit_may_wait_in_host_memory(with_norm: StepRequest) -> None:
    fast = replace(with_norm, link=Link(1e15, 1e15, 0.0))  # copies take no time
    first = plain(fast)
    plan = planned(fast, 0.7)
    assert isinstance(plan, Plan)
    assert plan.exact
    assert plan.swap is not None
    assert plan.swap.pinned_bytes > 0
    assert plan.peak_bytes <= plan.limit_bytes
    assert plan.step_s == pytest.approx(first.step_s, rel=0.01)
    slow = planned(replace(with_norm, link=Link(1.0, 1.0)), 0.9)
    assert isinstance(slow, Plan)
    assert slow.swap is None


def test_host_memory_that_is_too_small_is_no_way(with_norm: StepRequest) -> None:
    fast = replace(with_norm, link=Link(1e15, 1e15, 0.0), host_bytes=100.0)
    plan = planned(fast, 0.9)
    assert isinstance(plan, Plan)
    assert plan.swap is None
    assert any("of host memory" in each.why for each in plan.rejected)


def test_weights_that_are_on_the_host_stay_there(with_norm: StepRequest) -> None:
    """Also where a step with weights on the device would fit: its optimizer knows them where they are."""
    task = replace(with_norm, link=Link(1e9, 1e9, 0.0), weights={"block0.layer0.conv.weight": WEIGHT_BYTES})
    roomy = 2 * plain(task).peak_bytes
    whole = choose_offloaded(task, limit_bytes=roomy, budget_bytes=roomy, held_bytes=roomy)
    assert isinstance(whole, Plan)
    assert whole.offload is not None
    assert whole.recompute is None
    less = choose_offloaded(task, limit_bytes=roomy, budget_bytes=0.8 * whole.peak_bytes, held_bytes=roomy)
    assert isinstance(less, Plan)
    assert less.offload is not None
    assert less.recompute is not None or less.swap is not None
    assert less.peak_bytes <= 0.8 * whole.peak_bytes
    none = choose_offloaded(task, limit_bytes=roomy, budget_bytes=1.0, held_bytes=roomy)
    assert isinstance(none, list)
    assert [way.peak_bytes < less.peak_bytes for way in none] == [True]


def test_the_least_that_a_refusal_names_can_be_had(with_norm: StepRequest) -> None:
    refused = planned(with_norm, 0.05)
    assert isinstance(refused, list)
    least_bytes = min(way.peak_bytes for way in refused if way.inexact is None)
    assert least_bytes < plain(with_norm).peak_bytes
    fits = choose(with_norm, limit_bytes=least_bytes, budget_bytes=least_bytes, approximate=False)
    assert isinstance(fits, Plan)
    less = choose(with_norm, limit_bytes=1, budget_bytes=0.8 * least_bytes, approximate=False)
    assert isinstance(less, list)


def test_more_memory_makes_no_plan_slower(with_norm: StepRequest) -> None:
    plans = [planned(with_norm, share / 100) for share in range(99, 59, -4)]
    times = [plan.step_s for plan in plans if isinstance(plan, Plan) and plan.step_s is not None]
    assert len(times) > 3
    assert times == sorted(times)


@pytest.mark.parametrize(("host_op_s", "is_said"), [(1.0, True), (1e-12, False)])
def test_a_time_that_only_a_recorded_step_takes_is_said_to_be_one(
    task: StepRequest, host_op_s: float, is_said: bool
) -> None:
    for records in (True, False):
        plan = planned(replace(task, host_op_s=host_op_s, records=records), 1.0)
        assert isinstance(plan, Plan)
        assert any("recorded as one CUDA graph; called" in why for why in plan.why) == (is_said and records)
