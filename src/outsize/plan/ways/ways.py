"""The ways to make a training step fit: what each needs, how long it takes, and the settings of its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from outsize.errors import TraceError
from outsize.plan.cost import StepCost
from outsize.plan.memory import LEAST_BYTES, Arena, StorageRecipe, find_recipes
from outsize.plan.plan import Recompute, Tiling
from outsize.plan.search import HostAndDevice, Mixture, Room, mix
from outsize.plan.step import StepFacts, StepOp
from outsize.plan.tilings import MOST, core_for
from outsize.plan.times import BUFFER_CALLS, CHECKPOINTED_CALLS, host_calls, together
from outsize.plan.way import Again, StepPart, StepRequest, Way, in_words, of_mix, seconds_of
from outsize.plan.ways.blocks import Blocks, lies_in, list_blocks
from outsize.plan.ways.offload import offloaded
from outsize.plan.ways.paging import SURE, may_page, paging
from outsize.plan.ways.run_twice import run_twice
from outsize.plan.ways.some_blocks import some_blocks
from outsize.tiles.grid import cover
from outsize.units import Size, format_bytes, sides_of, size_of

_NUM_TRIED = 6  # budgets on the way to the least that something does
# of a budget: what is searched for where a search for all of it misses it by a little
_TIGHTER = (0.98, 0.95, 0.9)
_FAR = 1.1  # times what else is known to do: a long search does not mend that


def plain(task: StepRequest) -> Way:
    """Return the step as it is."""
    whole = StepPart("", 1, task.batch, task.side_px)
    called = replace(task, host_op_s=0.0) if task.records else task
    return _of(called, "plain", whole, StepCost(task.step_of(task.batch, task.side_px)))


def compiled(task: StepRequest) -> Iterator[Way]:
    """Yield the step with its blocks compiled."""
    plain_cost = StepCost(task.step_of(task.batch, task.side_px))
    on_device = replace(task, host_op_s=0.0) if task.overlaps else task
    plain_s = seconds_of(on_device, 1, plain_cost)
    for each in task.compiled:
        share = each.setting.activation_budget
        kept = "" if share is None else f" that keep {share:.0%} of what they would"
        seconds = together(each.time_share * plain_s, each.host_s, overlaps=task.overlaps)
        name = f"compile {len(each.setting.paths)} blocks{kept}"
        yield Way(name, each.peak_bytes(plain_cost), seconds, {"compile": each.setting})


def ways(task: StepRequest, budget_bytes: float) -> Iterator[Way]:
    """Yield all other ways: recompute, micro-batches, tiles, and micro-batches and tiles with recompute."""
    whole = StepPart("", 1, task.batch, task.side_px)
    whole_cost = StepCost(task.step_of(task.batch, task.side_px))
    exact = [*recomputing(task, whole, whole_cost, budget_bytes)]
    exact += [paging(task, whole, whole_cost, budget_bytes)] if may_page(task, whole) else []
    yield from exact
    # following a step takes seconds: what is approximate is not followed where something exact is known to do
    enough = any(way.fails is None and way.confirm is None and way.fits(budget_bytes) for way in exact)
    if not (enough and task.across_samples):
        yield from _micro_batches(task, budget_bytes)
    elif _numbers_of_parts(task.batch):
        yield Way("micro-batches", 0, math.inf, inexact=task.across_samples)
    across = task.why_tiles_are_inexact()
    if not (enough and across):
        yield from _tilings(task, budget_bytes)
    elif max(sides_of(task.side_px)) >= 2 * task.halo.stride_px:
        yield Way("tiles", 0, math.inf, inexact=across)


def _micro_batches(task: StepRequest, budget_bytes: float) -> Iterator[Way]:
    """Yield steps that go over the batch in parts."""
    for num in _numbers_of_parts(task.batch):
        num_samples = -(-task.batch // num)
        cost = _cost(task, num_samples, task.side_px)
        name, settings = f"{num} micro-batches", {"micro_batches": num}
        if isinstance(cost, str):
            yield Way(name, 0, 0.0, fails=cost)
            continue
        part = StepPart(f"{name}, ", num, num_samples, task.side_px, settings, task.across_samples)
        yield _of(task, name, part, cost)
        yield from recomputing(task, part, cost, budget_bytes)


def _cost(task: StepRequest, num_samples: int, side_px: Size) -> StepCost | str:
    """Return the cost of a part; or why the model does not run on it (batch norm of a single value)."""
    try:
        return StepCost(task.step_of(num_samples, side_px), is_part=True)
    except TraceError as error:
        return str(error)


def recomputing(task: StepRequest, part: StepPart, cost: StepCost, budget_bytes: float) -> Iterator[Way]:
    """Yield a step that recomputes tensors or lets them wait in host memory, and steps that run whole blocks again."""
    recipes = find_recipes(cost, task.again_s or task.op_s)
    if task.link is not None and task.host_bytes < LEAST_BYTES:
        few = f"only {format_bytes(task.host_bytes)} of host memory may be used"
        yield Way(f"{part.prefix}move tensors to host memory", 0, 0.0, inexact=part.inexact, fails=few)
    again = [
        (blocks, _rough(task, part, cost, blocks))
        for blocks in _sets_of_blocks(task, part, cost, budget_bytes)
    ]
    if not may_page(task, part):
        known_s = min((way.step_s for _, way in again if way.peak_bytes <= budget_bytes), default=math.inf)
        found = _mix(task, part, cost, recipes, budget_bytes, known_s=known_s)
        if found.recipes or found.swap is not None:
            yield _mixed(task, part, cost, found)
    for blocks, rough in again:
        # what does not fit by itself may do so with a mix on top, which a close look will tell
        peak_bytes = int(min(rough.peak_bytes, budget_bytes)) if part.num_runs == 1 else rough.peak_bytes
        look = cache(partial(_looked_at, task, part, rough, cost, blocks, budget_bytes))
        yield replace(rough, peak_bytes=peak_bytes, confirm=look)


def _sets_of_blocks(task: StepRequest, part: StepPart, cost: StepCost, budget_bytes: float) -> list[Blocks]:
    sets = list_blocks(cost, task.op_s, task.never)
    if part.num_runs > 1:  # of the many ways to cut a step, coarse sets are enough
        return sets
    pace = _pace(task, cost)

    def price_s(op: StepOp) -> float:
        return pace.price_s(task.op_s(op), host_calls(op) + CHECKPOINTED_CALLS / 2)

    room_bytes = budget_bytes - part.waiting_bytes(task, cost)
    found = [*some_blocks(cost, task.op_s, task.never, room_bytes, price_s), *sets]
    return list({frozenset(each.paths): each for each in found}.values())


def _pace(task: StepRequest, cost: StepCost, more_calls: float = 0.0) -> HostAndDevice:
    return HostAndDevice.of(cost.facts.ops, task.op_s, task.host_op_s, more_calls, overlaps=task.overlaps)


def _rough(task: StepRequest, part: StepPart, cost: StepCost, blocks: Blocks) -> Way:
    """Return the way that runs blocks again as it is estimated."""
    return Way(
        f"{part.prefix}recompute {_such(blocks)}",
        cost.peak_bytes(blocks.changed) + part.waiting_bytes(task, cost),
        seconds_of(task, part.num_runs, cost, _of_blocks(cost, blocks)),
        {**part.settings, "recompute": Recompute(blocks=blocks.paths)},
        part.inexact,
    )


def least(task: StepRequest, refused: Sequence[Way], budget_bytes: float) -> Iterator[Way]:
    """Yield the way of recomputing and moving that needs least, where it needs less than the exact ones that failed.

    A search for a budget that cannot be kept ends anywhere; so budgets between it and what is known to do are tried.
    """
    whole = StepPart("", 1, task.batch, task.side_px)
    cost = StepCost(task.step_of(task.batch, task.side_px))
    recipes = find_recipes(cost, task.again_s or task.op_s)
    too_few_bytes = max(1.0, budget_bytes)
    enough_bytes = min(way.peak_bytes for way in refused if way.inexact is None)
    lowest = None
    for _ in range(_NUM_TRIED):
        tried_bytes = math.sqrt(too_few_bytes * enough_bytes)
        found = _mix(task, whole, cost, recipes, tried_bytes, quick=True)
        if found.peak_bytes <= tried_bytes:
            enough_bytes, lowest = found.peak_bytes, found
        else:
            too_few_bytes = tried_bytes
    if lowest is not None:
        yield _mixed(task, whole, cost, lowest)


def _mixed(task: StepRequest, part: StepPart, cost: StepCost, found: Mixture) -> Way:
    return Way(
        part.prefix + in_words(found),
        found.peak_bytes + part.waiting_bytes(task, cost),
        seconds_of(task, part.num_runs, cost, of_mix(found)),
        {**part.settings, "recompute": found.as_recompute(), "swap": found.swap},
        part.inexact,
    )


def _such(blocks: Blocks) -> str:
    first, *others = blocks.paths
    return f"{len(blocks.paths)} blocks such as {first}" if others else f"block {first}"


def _mix(
    task: StepRequest,
    part: StepPart,
    cost: StepCost,
    recipes: Sequence[StorageRecipe],
    budget_bytes: float,
    *,
    quick: bool = False,
    known_s: float = math.inf,
    more_calls: float = 0.0,
) -> Mixture:
    """Return the best mix; one that was looked for in a hurry where it is far from a way that takes `known_s`."""
    room_bytes = budget_bytes - part.waiting_bytes(task, cost)
    room = Room(task.host_bytes, SURE * task.held_bytes, _pace(task, cost, more_calls))
    search = partial(mix, cost, recipes, task.op_s, task.link, room=room)
    # quickly also if it is one of many ways to cut the step: all of them are looked at
    quick = quick or part.num_runs > 1
    if not math.isinf(known_s):
        first = search(room_bytes, quick=True)
        first_s = seconds_of(task, part.num_runs, cost, of_mix(first))
        quick = quick or first.peak_bytes > room_bytes or first_s > _FAR * known_s
    found = first if quick and not math.isinf(known_s) else search(room_bytes, quick=quick)
    if quick or found.peak_bytes <= room_bytes:
        return found
    tighter = (search(share * room_bytes, quick=True) for share in _TIGHTER)
    return next((each for each in tighter if each.peak_bytes <= room_bytes), found)


def _looked_at(
    task: StepRequest, part: StepPart, rough: Way, cost: StepCost, blocks: Blocks, budget_bytes: float
) -> Way:
    """Return what blocks that are run again need, worked out from the plain step, with a mix where that is too much.

    The estimate knows each storage's life in the plain step. What a block recomputes lives otherwise: all of it at
    once, beside gradients that wait for it. Where a step can be followed that does it, it is before it is taken.
    """
    twice = StepCost(run_twice(cost, blocks.paths), is_part=cost.is_part)
    calls = CHECKPOINTED_CALLS * _num_kept(cost, blocks) + BUFFER_CALLS * _num_norms(cost, blocks)
    # saved tensors are known by name only where the step was followed
    may_mix = task.blocks_of is not None
    found = _with_blocks(task, part, rough, twice, blocks, calls, budget_bytes, may_mix=may_mix)
    if task.blocks_of is None:
        return found
    return replace(found, confirm=cache(partial(_confirmed, task, part, rough, cost, blocks, budget_bytes)))


def _confirmed(
    task: StepRequest, part: StepPart, rough: Way, cost: StepCost, blocks: Blocks, budget_bytes: float
) -> Way:
    """Return what blocks that are run again need by following the step that does it."""
    assert task.blocks_of is not None
    try:
        facts: StepFacts = task.blocks_of(part.num_samples, part.side_px, blocks.paths)
    except TraceError as error:  # a block that does otherwise the second time, say
        return replace(rough, fails=str(error), confirm=None)
    calls = CHECKPOINTED_CALLS * _num_kept(cost, blocks)
    traced = StepCost(facts, is_part=cost.is_part)
    return _with_blocks(task, part, rough, traced, blocks, calls, budget_bytes)


def _with_blocks(
    task: StepRequest,
    part: StepPart,
    rough: Way,
    cost: StepCost,
    blocks: Blocks,
    calls: float,
    budget_bytes: float,
    *,
    may_mix: bool = True,
) -> Way:
    """Return the way of a step in which blocks run again, with a mix on top where it is too full without."""
    waiting_bytes = part.waiting_bytes(task, cost)
    alone = replace(
        rough,
        peak_bytes=cost.peak_bytes() + waiting_bytes,
        step_s=seconds_of(task, part.num_runs, cost, Again(0.0, calls)),
        confirm=None,
    )
    if alone.peak_bytes <= budget_bytes or not may_mix:
        return alone
    recipes = find_recipes(cost, task.again_s or task.op_s)
    # quickly: this is one of several sets of blocks, and by what gaps come on top it either fits or does not
    arena = Arena(cost)
    for share in (1.0, *_TIGHTER):
        found = _mix(task, part, cost, recipes, share * budget_bytes, quick=True, more_calls=calls)
        held = part.num_runs == 1 and arena.held_bytes(found.changed) > SURE * task.held_bytes
        if not held:
            break
    if held or found.peak_bytes + waiting_bytes >= alone.peak_bytes:
        return alone
    again = of_mix(found)
    return replace(
        alone,
        name=f"{rough.name}, {in_words(found)}",
        peak_bytes=found.peak_bytes + waiting_bytes,
        step_s=seconds_of(task, part.num_runs, cost, replace(again, num_calls=again.num_calls + calls)),
        settings={**part.settings, "recompute": found.as_recompute(blocks.paths), "swap": found.swap},
    )


def _tilings(task: StepRequest, budget_bytes: float) -> Iterator[Way]:
    """Yield steps that go over each window in tiles, the largest tile first: redundancy falls with it."""
    inexact = task.why_tiles_are_inexact()
    need = task.halo.aligned
    sides_px = sides_of(task.side_px)
    for num in range(2, min(MOST, max(sides_px) // task.halo.stride_px) + 1):
        core_px = core_for(max(sides_px), num, task.halo.stride_px)
        tiles = cover(*sides_px, core_px, need)
        read_px = tiles[0].read.height, tiles[0].read.width
        if read_px[0] >= sides_px[0] and read_px[1] >= sides_px[1]:
            continue  # core and halo are as large as the window
        tiling = Tiling.of(core_px, task.halo)
        settings = {"tiles": tiling, **({"micro_batches": task.batch} if task.batch > 1 else {})}
        cost = _cost(task, 1, size_of(*read_px))
        name = f"tiles with a core of {core_px} px"
        if isinstance(cost, str):
            yield Way(name, 0, 0.0, fails=cost)
            continue
        num_runs = task.batch * len(tiles)
        part = StepPart(f"{name}, ", num_runs, 1, size_of(*read_px), settings, inexact)
        plainly = _of(task, name, part, cost)
        yield plainly
        yield from recomputing(task, part, cost, budget_bytes)
        if plainly.peak_bytes <= budget_bytes:
            return


def offloading(task: StepRequest, budget_bytes: float) -> Iterator[Way]:
    """Yield a step whose weights, gradients and optimizer are on the host, with a mix where that is not enough."""
    if task.link is None or not task.weights:
        return
    whole = StepPart("", 1, task.batch, task.side_px)
    facts = task.step_of(task.batch, task.side_px)
    backward_s = sum(task.op_s(op) for op in facts.ops if op.backward)
    hosted = offloaded(facts, task.weights, task.link, backward_s=backward_s)
    cost, name = StepCost(hosted.facts), "weights and optimizer in host memory"
    room_bytes = task.host_bytes - hosted.setting.host_bytes
    if room_bytes < 0:
        short = f"needs {format_bytes(hosted.setting.host_bytes)} of host memory"
        yield Way(name, 0, 0.0, fails=short)
        return
    extra = Again(hosted.extra_s)
    settings: dict[str, Any] = {"offload": hosted.setting}
    if cost.peak_bytes() <= budget_bytes:
        yield Way(name, cost.peak_bytes(), seconds_of(task, 1, cost, extra), settings)
        return
    recipes = find_recipes(cost, task.again_s or task.op_s)
    found = _mix(replace(task, host_bytes=room_bytes), whole, cost, recipes, budget_bytes)
    again = of_mix(found)
    again = replace(again, device_s=again.device_s + hosted.extra_s)
    settings |= {"recompute": found.as_recompute(), "swap": found.swap}
    yield Way(f"{name}, {in_words(found)}", found.peak_bytes, seconds_of(task, 1, cost, again), settings)


def _of(task: StepRequest, name: str, part: StepPart, cost: StepCost) -> Way:
    peak_bytes = cost.peak_bytes() + part.waiting_bytes(task, cost)
    return Way(name, peak_bytes, seconds_of(task, part.num_runs, cost), part.settings, part.inexact)


def _of_blocks(cost: StepCost, blocks: Blocks) -> Again:
    ops = [op for op in cost.facts.ops[: cost.turn] if lies_in(op.module, *blocks.paths)]
    num_calls = CHECKPOINTED_CALLS * _num_kept(cost, blocks) + sum(map(host_calls, ops))
    return Again(blocks.cost_s, num_calls)


def _num_norms(cost: StepCost, blocks: Blocks) -> int:
    """Count the norms of blocks that put statistics aside when they run again."""
    forward = cost.facts.ops[: cost.turn]
    return sum(1 for op in forward if "batch_norm" in op.kind and lies_in(op.module, *blocks.paths))


def _num_kept(cost: StepCost, blocks: Blocks) -> int:
    """Count the tensors that blocks would keep if they were not run again."""
    return sum(1 for each in cost.facts.saved if lies_in(each.key[0], *blocks.paths))


def _numbers_of_parts(batch: int) -> list[int]:
    """Return the numbers of parts that a batch falls into when their size is halved again and again."""
    sizes, size = [], batch
    while size > 1:
        size = -(-size // 2)
        sizes.append(size)
    return [-(-batch // size) for size in sizes]
