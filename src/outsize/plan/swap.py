"""What of a step can wait in host memory, and the moments in the step at which it may leave and come back.

A storage that is moved is not there in between, and all that happens to it happens when autograd packs or unpacks:

    op        0 . . . . . . . . . . . | . . . . . . . . . . 23
    kept      --born===============================dies---
    moved     --born======gone........|....back====dies---
                  |copy out|                |copy in|
    packing       key      release          |      |
    unpacking                             fetch   need

Where whole blocks are run again, the hooks around the step see nothing of what is packed inside of them. They see what
goes into a block, which autograd saves as it saves anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outsize.plan.blocks import Blocks, outward
from outsize.plan.cost import NOTHING, StepCost
from outsize.plan.recompute import OpSeconds
from outsize.plan.step import Key, Saved, StepOp, Storage

LEAST_BYTES = (
    2**20
)  # below that a copy is as long as its start, and the host's work for it dearer than its memory


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
    unpackings: Mapping[int, Key]  # in order
    movable: tuple[Movable, ...]  # in the order of packing
    turn: int  # the first operation of backward


@dataclass(frozen=True)
class _Rerun:
    """A block that is run again: from what, when it begins in forward, and when it is run in backward."""

    path: str
    given: frozenset[int]
    saved: int | None  # the one of them that autograd saves; None: it is not the only one
    begins: int
    again: int
    cost_s: float

    @property
    def key(self) -> Key:
        """The name of what goes into it and is saved: before anything else of its first call."""
        return (self.path, 0, 0)


def find_points(cost: StepCost, blocks: Blocks | None = None, least_bytes: int = LEAST_BYTES) -> Points:
    """Return what can be moved and when, in a plain step or in one that runs a set of blocks again."""
    reruns = _reruns(cost, blocks, lambda _: 0.0) if blocks else []
    known = {each.path for each in reruns}
    inside = {saved.storage for saved in cost.facts.saved if not known.isdisjoint(outward(saved.key[0]))}
    seen = [saved for saved in cost.facts.saved if known.isdisjoint(outward(saved.key[0]))]
    seen += [Saved(each.key, each.saved, 0, each.begins) for each in reruns if each.saved is not None]
    seen.sort(key=lambda saved: saved.packed)
    packings = {saved.packed: saved.key for saved in seen if saved.packed < cost.turn}
    # of the tensors in a storage the last one packed is the first one unpacked
    last = {saved.storage: saved.key for saved in seen}
    unpackings = {
        cost.first_backward[storage]: key
        for storage, key in last.items()
        if storage in cost.first_backward and storage not in inside
    }
    unpackings |= {rerun.again: rerun.key for rerun in reruns if rerun.saved is not None}
    first: dict[int, Saved] = {}
    for saved in seen:
        first.setdefault(saved.storage, saved)
    found = (_movable(cost, saved, reruns, sorted(packings), blocks) for saved in first.values())
    movable = tuple(each for each in found if each is not None and each.size_bytes >= least_bytes)
    return Points(packings, dict(sorted(unpackings.items())), movable, cost.turn)


def rerun_seconds(cost: StepCost, blocks: Blocks, op_s: OpSeconds) -> dict[int, float]:
    """Return the time that running blocks again takes, by the operation of backward before which they run."""
    found: dict[int, float] = {}
    for rerun in _reruns(cost, blocks, op_s):
        found[rerun.again] = found.get(rerun.again, 0.0) + rerun.cost_s
    return found


def _movable(
    cost: StepCost, first: Saved, reruns: list[_Rerun], packings: list[int], blocks: Blocks | None
) -> Movable | None:
    about, storage = cost.by_index[first.storage], first.storage
    if about.role != "activation" or about.born < 0 or storage not in cost.first_backward:
        return None
    if first.packed >= cost.turn:
        return None  # nothing is packed after it
    if any(op.index >= first.packed for op in cost.writers.get(storage, ())):
        return None  # it is changed while its copy may be under way
    if about.dies == len(cost.facts.ops) > cost.readers[storage][-1] + 1:
        return None  # somebody holds it beyond backward
    users = [rerun for rerun in reruns if storage in rerun.given]
    if any(rerun.saved != storage for rerun in users) or not _lives_twice_at_most(about, blocks):
        return None
    need = min([cost.first_backward[storage], *(rerun.again for rerun in users)])
    earliest = max(cost.let_go[storage], first.packed + 1)
    free = next((each for each in packings if each >= earliest), cost.turn)
    return Movable(storage, first.key, about.size_bytes, about.born, first.packed, free, need, about.dies)


def _lives_twice_at_most(about: Storage, blocks: Blocks | None) -> bool:
    """Say whether a storage that blocks change is there without a break, or nearly, from its need to its end."""
    changed = blocks.changed if blocks else NOTHING
    gone, back = changed.twice.get(about.index, (0, 0))
    return about.index not in changed.anew and changed.held.get(about.index, 0) <= about.dies and gone <= back


def _reruns(cost: StepCost, blocks: Blocks, op_s: OpSeconds) -> list[_Rerun]:
    inside: dict[str, list[StepOp]] = {path: [] for path in blocks.paths}
    trained: set[int] = set()  # what a weight went into, and has a gradient therefore
    for op in cost.facts.ops[: cost.turn]:
        if any(each in trained or cost.by_index[each].role == "weight" for each in op.inputs):
            trained.update(op.outputs)
        path = next((each for each in outward(op.module) if each in inside), None)
        if path is not None:
            inside[path].append(op)
    return [_rerun(cost, blocks, path, ops, trained, op_s) for path, ops in inside.items()]


def _rerun(
    cost: StepCost, blocks: Blocks, path: str, ops: list[StepOp], trained: set[int], op_s: OpSeconds
) -> _Rerun:
    begins = ops[0].index
    about = [cost.by_index[each] for op in ops for each in op.inputs]
    given = frozenset(each.index for each in about if each.born < begins and each.role == "activation")
    # autograd saves only what has a gradient; in which order, where there are several, is not known from here, and
    # of a block that is called twice not the call
    once = ops[-1].index - begins + 1 == len(ops) and all(op.call == 0 for op in ops if op.flops)
    saved = next(iter(given & trained)) if once and len(given & trained) == 1 else None
    anew = blocks.changed.anew
    again = min(anew[each] for op in ops for each in op.outputs if each in anew)
    return _Rerun(path, given, saved, begins, again, sum(map(op_s, ops)))
