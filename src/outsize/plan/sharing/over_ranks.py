"""How ranks share a batch: whole pictures on each, or each picture on several of them, whichever is faster.

whole       replicas: each rank has other samples
exchange    a part of each picture on each rank, borders sent in every layer; norms see the whole picture
recompute   a part and its halo on each rank, which is recomputed; nothing is sent but gradients
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from outsize.errors import PlanError, explain
from outsize.job import LimitsSection
from outsize.plan.facts import Facts
from outsize.plan.links import LinkSpec
from outsize.plan.plan import Plan, Rejected, Spatial
from outsize.plan.way import StepRequest
from outsize.plan.ways import choose_train
from outsize.tiles.grid import redundancy
from outsize.units import format_bytes, format_count, format_seconds, sides_of, size_of

_MOST_DIVISORS = 3  # numbers of ranks to a picture that are looked at: following a step takes seconds


class BordersSent(NamedTuple):
    """What the forward of one sample sends from a rank that has neighbours on all sides."""

    num_messages: int  # one after another: those to several neighbours go together
    num_bytes: int


@dataclass(frozen=True)
class OverRanks:
    """Ranks that share a batch, and what is between them."""

    num: int
    batch: int  # of all
    asked: str  # auto, or one of the ways above
    link: LinkSpec
    borders_of: Callable[[Spatial], BordersSent | str]  # or why the model cannot be spread


def choose_over_ranks(known: Facts, limits: LimitsSection, task: StepRequest, over: OverRanks) -> Plan:
    """Return the fastest plan for ranks that share a batch; `task` is that of whole pictures on each rank.

    Pictures stay whole where there are enough of them and the plain step fits: nothing is faster.
    """
    choose = partial(choose_train, known, limits)
    if over.num == 1:
        return choose(task)
    found: list[Plan] = []
    rejected: list[Rejected] = []
    if over.num <= over.batch and over.asked in ("auto", "whole"):
        try:
            found.append(choose(task))
        except PlanError as error:
            if over.asked == "whole":
                raise
            rejected.append(Rejected("whole pictures on each rank", str(error)))
        if found and (over.asked == "whole" or replace(found[0].plain(), fuse=found[0].fuse) == found[0]):
            return found[0]
    for spatial in _grids(task, over):
        plan = _spread(task, over, spatial, choose)
        (rejected if isinstance(plan, Rejected) else found).append(plan)  # type: ignore[arg-type]
    if not found:
        raise _no_way(over, rejected)
    best = min(found, key=lambda plan: (not plan.exact, plan.step_s or 0.0))
    slower = [
        Rejected(_named(plan), f"slower: {format_seconds(plan.step_s or 0.0)} predicted")
        for plan in found
        if plan is not best
    ]
    return replace(best, rejected=(*best.rejected, *slower, *rejected))


def part_of(task: StepRequest, spatial: Spatial, num_samples: int) -> StepRequest:
    """Return the step of the rank that has the largest part of each of so many pictures; it is not cut further."""
    windows = [tile.read for tile in spatial.tiles()]
    sides_px = max(each.height for each in windows), max(each.width for each in windows)
    halo = replace(task.halo, stride_px=max(sides_px))  # there is no smaller tile
    return replace(task, batch=num_samples, side_px=size_of(*sides_px), halo=halo)


def _grids(task: StepRequest, over: OverRanks) -> Iterator[Spatial]:
    """Yield the ways to cut pictures: few parts first, in rows and in the squarest grid."""
    height, width = sides_of(task.side_px)
    stride_px, need = task.halo.stride_px, task.halo.aligned
    halo = ((need.rows.before_px, need.cols.before_px), (need.rows.after_px, need.cols.after_px))
    divisors = [
        each for each in range(2, over.num + 1) if over.num % each == 0 and over.num // each <= over.batch
    ]
    for num in divisors[:_MOST_DIVISORS]:
        cols = next(each for each in range(int(num**0.5), 0, -1) if num % each == 0)
        for grid in dict.fromkeys(((num, 1), (num // cols, cols))):
            exchange = Spatial(grid, (height, width), stride_px)
            ways = {
                "exchange": exchange,
                "recompute": replace(exchange, halo_before_px=halo[0], halo_after_px=halo[1]),
            }
            for name, spatial in ways.items():
                if over.asked in ("auto", name):
                    yield spatial


def _spread(
    task: StepRequest, over: OverRanks, spatial: Spatial, choose: Callable[[StepRequest], Plan]
) -> Plan | Rejected:
    num_samples = -(-over.batch // (over.num // spatial.num))
    name, sent_s = _name(spatial), 0.0
    try:
        if spatial.exchanges:
            sent = over.borders_of(spatial)
            if isinstance(sent, str):
                return Rejected(name, sent)
            times, num_bytes = (
                2 * sent.num_messages,
                2 * num_samples * sent.num_bytes,
            )  # forward, and back again
            sent_s = times * over.link.latency_s + num_bytes / over.link.bytes_per_s
            how = f"borders cross {times} times a step, {format_bytes(num_bytes)} from a rank"
            how += f", which takes {format_seconds(sent_s)}; no pixel is computed twice"
        else:
            why = task.why_tiles_are_inexact()
            if why is not None:
                return Rejected(name, f"approximate: {why}")
            more = redundancy(spatial.tiles(), *spatial.picture_px)
            how = f"they compute {more:.3f} times the pixels, for their halos"
        plan = choose(part_of(task, spatial, num_samples))
    except PlanError as error:
        return Rejected(name, str(error))
    taken = f"{name}: {format_count(num_samples, 'sample')} on a rank; {how}"
    return replace(plan, spatial=spatial, step_s=(plan.step_s or 0.0) + sent_s, why=(taken, *plan.why))


def _name(spatial: Spatial) -> str:
    rows, cols = spatial.grid
    how = "borders exchanged" if spatial.exchanges else "halos recomputed"
    return f"each picture on {rows} x {cols} ranks, {how}"


def _named(plan: Plan) -> str:
    return "whole pictures on each rank" if plan.spatial is None else _name(plan.spatial)


def _no_way(over: OverRanks, rejected: list[Rejected]) -> PlanError:
    if over.num > over.batch:
        what = "there are more GPUs than samples in a batch"
        found = f"--gpus {over.num} for train.batch = {over.batch}"
        remedy = f"take --gpus {over.batch} or fewer, or a larger train.batch"
    else:
        what, found = "the training does not fit, whole or in parts", f"{over.num} ranks"
        remedy = "take a smaller train.tile_px or batch, or more ranks"
    reasons = (
        "; ".join(f"{each.what}: {each.why}" for each in rejected)
        or "no number of ranks divides the pictures"
    )
    need = f"a sample for each, or pictures that can be spread ({reasons})"
    return PlanError(explain(what, found, need, remedy))
