"""What a real step teaches beyond the model of times, and what is remembered of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from outsize.measure.learning import look, operations
from outsize.measure.learning.look import LEAST_USABLE, MOST_USABLE, SeenStep
from outsize.measure.remembered import (
    code_of,
    fingerprint,
    is_between,
    key_of,
    recall,
    recall_or_make,
    remember,
)
from outsize.plan import seen as seen_before
from outsize.plan import times
from outsize.plan.seen import grouped, is_fused, paced
from outsize.plan.step import StepOp
from outsize.plan.times import CLASSES, NORM_GRADIENTS, NORMS, Clock, Learnt, host_calls
from outsize.units import Size, parse_size

# Beyond, it is no matter of gaps: the step waited for its host all the same. And the profiler slows nothing by more.
_MOST_STRETCHED = 1.15
# What no step falls short of or goes beyond, by far: seconds of a call, real over modelled time, bytes of a workspace
_LONGEST_CALL_S, _SLOWEST, _MOST_BYTES = 10.0, 1e9, 2**50


def taught_by(seen: SeenStep, ops: Sequence[StepOp], clock: Clock, *, batch: int, side_px: Size) -> Learnt:
    """Return what a step that was seen, and that consists of these operations, teaches beyond what the clock says."""
    host_op_s = seen.host_s / max(1.0, sum(map(host_calls, ops)))
    paces, factors = _paces(seen.operations.seconds, ops, clock), _factors(seen, ops, clock)
    learnt = Learnt(factors, host_op_s, seen.usable_share, batch, side_px, seen.operations.workspaces, paces)
    return _stretched(learnt, seen, ops, clock) if paces else learnt


def _factors(seen: SeenStep, ops: Sequence[StepOp], clock: Clock) -> dict[str, float]:
    """Return real over modelled time of each class; what the profiler knows of no operation belongs to our norms alone.

    In other classes that is more than our few kernels there, so nothing is learnt about them.
    """
    if not seen.operations.seconds:
        return _shares(seen.kernels_s, clock.by_class(ops))
    taken_s = seen.operations.by_class()
    factors = _shares(taken_s, clock.by_class([op for op in ops if not is_fused(op.kind)]))
    unseen = clock.by_class([op for op in ops if is_fused(op.kind)])
    left_s = {name: seen.kernels_s[name] - taken_s.get(name, 0.0) for name in (NORMS, NORM_GRADIENTS)}
    return factors | _shares(left_s, unseen)


def _shares(real_s: Mapping[str, float], modelled_s: Mapping[str, float]) -> dict[str, float]:
    """Divide where there is something to divide: a class that hardly occurs may hold what nobody counts."""
    names = [name for name in CLASSES if modelled_s[name] > 0 and real_s.get(name, 0.0) > 0]
    return {name: real_s[name] / modelled_s[name] for name in names}


def _stretched(learnt: Learnt, seen: SeenStep, ops: Sequence[StepOp], clock: Clock) -> Learnt:
    """Return times that add up to that of the step.

    Between kernels there are gaps, and some belong to no operation; while each is looked at, they take longer.
    """
    taught = clock.taught(learnt)
    total_s = sum(taught.op_s(op) for op in paced(ops, learnt.paces))
    if total_s <= 0 or seen.device_s <= 0:
        return learnt
    by = min(_MOST_STRETCHED, max(1 / _MOST_STRETCHED, seen.device_s / total_s))
    factors = {name: by * learnt.factors.get(name, 1.0) for name in CLASSES}
    paces = {group: [by * pace for pace in found] for group, found in learnt.paces.items()}
    return replace(learnt, factors=factors, paces=paces)


def _paces(
    seconds: Mapping[str, Sequence[float]], ops: Sequence[StepOp], clock: Clock
) -> dict[str, list[float]]:
    """Return real over modelled time of each operation, by group; of all together where others ran than are listed."""
    paces = {}
    for group, found in grouped(ops).items():
        modelled_s, seen_s = [clock.op_s(op) for op in found], seconds.get(group, [])
        if sum(modelled_s) > 0 and len(seen_s) == len(found):
            pairs = zip(seen_s, modelled_s, strict=True)
            paces[group] = [real_s / own_s if own_s > 0 else 0.0 for real_s, own_s in pairs]
        elif sum(modelled_s) > 0 and sum(seen_s) > 0:
            paces[group] = [sum(seen_s) / sum(modelled_s)]
    return paces


def recall_or_learn(
    names: Sequence[str],
    device: torch.device,
    learn_now: Callable[[], Learnt | None],
    warn: Callable[[str], object] = lambda _: None,
    is_enough: Callable[[Learnt], bool] = lambda _: True,
) -> Learnt | None:
    """Return what was learnt before of a step with these names on this very device and torch, or learn it now.

    What was learnt and `is_enough` no longer is learnt again.
    """

    def read(tree: Any) -> Learnt | None:
        known = _read(tree)
        return known if known is not None and is_enough(known) else None

    return recall_or_make(_file_name(names, device), device, read=read, make=learn_now, warn=warn)


def recall_lesson(names: Sequence[str], device: torch.device) -> Learnt | None:
    """Return what is remembered of a step with these names; None where nothing is."""
    return recall(_file_name(names, device), _read)


def relearn(names: Sequence[str], device: torch.device, *, at_most: float) -> None:
    """Remember of a step of which something is remembered that no more than this share is usable."""
    known = recall_lesson(names, device)
    if known is not None and known.usable_share is not None:
        share = max(LEAST_USABLE, min(known.usable_share, at_most))
        remember(_file_name(names, device), asdict(replace(known, usable_share=share)))


def _file_name(names: Sequence[str], device: torch.device) -> str:
    # factors are over modelled times: another model of times makes them worthless
    code = code_of(times, seen_before, operations, look, sys.modules[__name__])
    return f"step-{key_of([*names, *code, fingerprint(device)])}.json"


def _read(tree: Any) -> Learnt | None:
    """Return the lesson that a tree is; None, or an error, where it makes no sense."""
    known = Learnt(**tree)
    known = replace(known, side_px=parse_size(known.side_px))
    sound = set(known.factors) <= set(CLASSES) and is_between(0, [known.host_op_s], _LONGEST_CALL_S)
    sound &= is_between(0, known.factors.values(), _SLOWEST)
    sound &= all(is_between(0, found, _SLOWEST) for found in known.paces.values())
    sound &= all(
        type(num) is int and 0 <= num < _MOST_BYTES for taken in known.workspaces.values() for num in taken
    )
    sound &= type(known.batch) is int and known.batch > 0 and is_between(0, [known.room_bytes], _MOST_BYTES)
    sound &= known.usable_share is None or LEAST_USABLE <= known.usable_share <= MOST_USABLE
    return known if sound else None
