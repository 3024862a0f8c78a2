"""What of a step can wait in host memory, and the moments in the step at which it may leave and come back.

A storage that is moved is not there in between, and all that happens to it happens when autograd packs or unpacks:

    op        0 . . . . . . . . . . . | . . . . . . . . . . 23
    kept      --born===============================dies---
    moved     --born======gone........|....back====dies---
                  |copy out|                |copy in|
    packing       key      release          |      |
    unpacking                             fetch   need

Where whole blocks are run again, facts are those of a step that does it: what goes into one is saved like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outsize.plan.cost import StepCost
from outsize.plan.step import Key, Saved

LEAST_BYTES = (
    2**20
)  # below that a copy is as long as its start, and the host's work for it costlier than its memory


@dataclass(frozen=True, slots=True)
class Movable:
    """A saved storage that may wait in host memory, and the operations between which it can be away."""

    storage: int
    key: Key  # of the first saved tensor in it
    size_bytes: int
    born: int
    packed: int  # the copy out begins before this operation
    free: int  # nobody else holds it from this operation on; the first of backward at the latest
    need: int  # it must be back before this operation
    dies: int


@dataclass(frozen=True)
class Points:
    """The operations before which a tensor is packed or unpacked that a plan can name, and what can be moved."""

    packings: Mapping[int, Key]  # in order; of several before the same operation the last
    unpackings: Mapping[int, Key]  # in order; of several before the same operation the last
    first_unpackings: Mapping[int, Key]  # and the first, in whose backward others may be recomputed
    movable: tuple[Movable, ...]  # in the order of packing
    turn: int  # the first operation of backward


def find_points(cost: StepCost, least_bytes: int = LEAST_BYTES) -> Points:
    """Return what can be moved and when."""
    seen = sorted(cost.facts.saved, key=lambda saved: saved.packed)
    packings = {saved.packed: saved.key for saved in seen if saved.packed < cost.turn}
    # of the tensors in a storage the last one packed is the first one unpacked
    last = {saved.storage: saved.key for saved in seen}
    used = [(cost.first_backward[each], key) for each, key in last.items() if each in cost.first_backward]
    unpackings = dict(sorted(used, key=lambda each: each[0]))
    first_unpackings = dict(reversed(used))
    first: dict[int, Saved] = {}
    for saved in seen:
        first.setdefault(saved.storage, saved)
    found = (_movable(cost, saved, sorted(packings)) for saved in first.values())
    movable = tuple(each for each in found if each is not None and each.size_bytes >= least_bytes)
    return Points(packings, unpackings, first_unpackings, movable, cost.turn)


def _movable(cost: StepCost, first: Saved, packings: list[int]) -> Movable | None:
    about, storage = cost.by_index[first.storage], first.storage
    if about.role != "activation" or about.born < 0 or storage not in cost.first_backward:
        return None
    if first.packed >= cost.turn:
        return None  # nothing is packed after it
    if any(op.index >= first.packed for op in cost.writers.get(storage, ())):
        return None  # it is changed while its copy may be under way
    if about.dies == len(cost.facts.ops) > cost.readers[storage][-1] + 1 or cost.let_go[storage] > cost.turn:
        return None  # somebody holds it in backward, or beyond
    need = cost.first_backward[storage]
    earliest = max(cost.let_go[storage], first.packed + 1)
    free = next((each for each in packings if each >= earliest), cost.turn)
    return Movable(storage, first.key, about.size_bytes, about.born, first.packed, free, need, about.dies)
