"""Steps in a line with times and sizes of one's own, and a machine that carries a swap out as hooks would do it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outsize.plan.cost import StepCost
from outsize.plan.plan import Swap
from outsize.plan.search.choice import Choice
from outsize.plan.search.search import Search
from outsize.plan.search.timeline import Link, Timeline
from outsize.plan.step import Saved, StepFacts, StepOp, Storage
from outsize.plan.times import OpSeconds


def line(forward_s: Sequence[float], backward_s: Sequence[float], sizes: Sequence[int]) -> StepFacts:
    """Return layers in a row: operation i makes storage i from i - 1, and the next one saves what it reads.

    There is one size less than operations forward, because the last makes a loss of nothing, and one operation
    backward for each size: they read the storages, the last one first, and each dies when it was read. The time of an
    operation is written down as its FLOPs, in thousandths of a second.
    """
    turn, num = len(forward_s), len(sizes)
    assert turn == num + 1
    assert len(backward_s) == num
    ops = [
        _op(index, f"layer{index}", (index - 1,) if index else (), (index,) if index < num else (), seconds)
        for index, seconds in enumerate(forward_s)
    ]
    ops += [_op(turn + place, "", (num - 1 - place,), (), each) for place, each in enumerate(backward_s)]
    storages = [
        Storage(index, size, index, turn + (num - 1 - index) + 1, "activation")
        for index, size in enumerate(sizes)
    ]
    saved = [Saved((f"layer{index + 1}", 0, 0), index, size, index + 1) for index, size in enumerate(sizes)]
    return StepFacts(tuple(ops), tuple(storages), tuple(saved), True, tuple(op.module for op in ops[:turn]))


def _op(index: int, module: str, inputs: tuple[int, ...], outputs: tuple[int, ...], seconds: float) -> StepOp:
    return StepOp(index, "op", module, 0, not module, inputs, outputs, round(seconds * 1000), 0, "float32")


def op_s(op: StepOp) -> float:
    """Return the time of an operation of a line."""
    return op.flops / 1000


@dataclass
class Seen:
    """What was seen when a swap was carried out."""

    stall_s: float
    live_bytes: list[int]
    missing: list[int]  # storages that were read while they were away


def carry_out(facts: StepFacts, swap: Swap, link: Link) -> Seen:
    """Walk through a line, hook by hook, knowing nothing of a timeline but the keys that the swap names."""
    cost = StepCost(facts)
    storage_of = {saved.key: saved.storage for saved in facts.saved}
    moved = {storage_of[each.key]: each for each in swap.moved}
    there = {each.index: False for each in facts.storages}
    left: dict[int, float] = {}  # when copies end
    ends: dict[int, float] = {}
    now_s = out_s = in_s = plain_s = 0.0
    seen = Seen(0.0, [], [])

    def release(due: list[int]) -> None:
        nonlocal now_s
        for storage in due:
            now_s, there[storage] = max(now_s, left[storage]), False

    for op in facts.ops:
        for saved in (each for each in facts.saved if each.packed == op.index and op.index < cost.turn):
            if saved.storage in moved:
                out_s = left[saved.storage] = max(out_s, now_s) + link.out_s(moved[saved.storage].size_bytes)
            release([each for each, about in moved.items() if about.release == saved.key and not about.late])
        if op.index == cost.turn:
            release([each for each, about in moved.items() if about.release is None])
        for read in op.inputs if op.backward else ():
            key = next(saved.key for saved in facts.saved if saved.storage == read)
            release([each for each, about in moved.items() if about.release == key and about.late])
            wanted = [each for each in moved if moved[each].fetch == key]
            wanted = [each for each in wanted if each not in ends]
            wanted += [read] if read in moved and read not in (*ends, *wanted) else []
            if read in ends:
                now_s = max(now_s, ends[read])
            for storage in wanted:
                in_s = ends[storage] = max(in_s, now_s) + link.in_s(moved[storage].size_bytes)
                there[storage] = True
            now_s = max(now_s, ends.get(read, 0.0))
        there.update(dict.fromkeys(op.outputs, True))
        seen.missing += [each for each in op.inputs if not there[each]]
        seen.live_bytes.append(sum(each.size_bytes for each in facts.storages if there[each.index]))
        there.update({each.index: False for each in facts.storages if each.dies == op.index + 1})
        now_s, plain_s = now_s + op_s(op), plain_s + op_s(op)
    seen.stall_s = now_s - plain_s
    return seen


def schedule(
    cost: StepCost, storages: Collection[int], op_s: OpSeconds, link: Link, budget_bytes: float
) -> tuple[Swap, Timeline] | None:
    """Return when these storages leave and return, as the planner would have it; None: it cannot fit."""
    search = Search(cost, (), op_s, link, budget_bytes, least_bytes=0)
    choice = Choice(search.plain)
    for item in search.points.movable:
        if item.storage in storages:
            choice.take(item)
    timed = search.timed(choice)
    if timed is None:
        return None
    timeline = search.postponed(timed).timeline
    return timeline.as_swap(search.points), timeline
