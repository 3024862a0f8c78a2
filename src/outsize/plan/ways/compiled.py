"""Which modules to compile, and what a step's facts become when they are: a compiled block saves other tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from outsize.plan.memory.blocks import lies_in, outward
from outsize.plan.memory.cost import StepCost
from outsize.plan.plan import Compile
from outsize.plan.step import StepFacts, StepOp, Storage, allocated_bytes

_LARGEST_SHARE = (
    1 / 8
)  # of all saved bytes; more in one piece takes long to compile and is freed late on the way back
_KIND = "compiled"  # of operations inside of a compiled block: no recipe may be made of them


@dataclass(frozen=True)
class CompiledSaved:
    """What one compiled block keeps for backward, without what goes into it and what comes out."""

    fixed_bytes: int  # copies of weights, statistics of norms: the same for any batch and window
    bytes_per_px: float  # pixels of all samples that go into the model

    def at(self, num_px: int) -> int:
        """Return the bytes for a batch of so many pixels in all."""
        return self.fixed_bytes + round(self.bytes_per_px * num_px)


@dataclass(frozen=True)
class Compiled:
    """One way to compile a model that was tried: what its blocks keep, and the time of a step."""

    setting: Compile
    saved: Mapping[str, CompiledSaved]
    time_share: float  # of the plain step's on the device
    host_s: float  # to call it, whatever the batch
    unseen_bytes_per_px: float = 0.0  # that the step which was tried took beyond what its facts tell

    def facts(self, plain: StepFacts, num_px: int) -> StepFacts:
        """Return the facts of a step on so many pixels that is compiled this way."""
        return with_compiled(plain, self.saved, num_px)

    def peak_bytes(self, plain: StepFacts, num_px: int) -> int:
        """Return what such a step holds at its fullest."""
        return StepCost(self.facts(plain, num_px)).peak_bytes() + round(self.unseen_bytes_per_px * num_px)

    def corrected(self, plain: StepFacts, num_px: int, rise_bytes: int | None) -> Compiled:
        """Return the same that knows how far the step which was tried rose above what lay there before it.

        Facts do not tell what compiled code makes again on the way back, nor all that it holds meanwhile. What it
        holds less than they say is not counted on. None: nobody could count it.
        """
        if rise_bytes is None:
            return self
        cost = StepCost(self.facts(plain, num_px))
        unseen_bytes = rise_bytes - (cost.peak_bytes() - cost.lasting_bytes)
        return replace(self, unseen_bytes_per_px=max(0.0, unseen_bytes / num_px))


def blocks_to_compile(facts: StepFacts) -> tuple[str, ...]:
    """Return the outermost modules of several layers, none of which keeps a large share of all that is saved.

    One that keeps more is taken apart, if it consists of such modules, and else compiled all the same. The model
    itself is no block: its blocks give their memory back one by one.
    """
    size_bytes = {each.index: each.size_bytes for each in facts.storages}
    kept_bytes: Counter[str] = Counter()
    for storage, module in {each.storage: each.key[0] for each in facts.saved}.items():
        for path in outward(module):
            kept_bytes[path] += size_bytes[storage]
    forward = [op.module for op in facts.ops if not op.backward and op.module]
    layers: dict[str, set[str]] = {}
    num_ops: Counter[str] = Counter()
    for module in forward:
        for path in outward(module):
            layers.setdefault(path, set()).add(module)
            num_ops[path] += 1
    several = {path for path in facts.modules if path and len(layers.get(path, ())) > 1}

    def is_apart(path: str) -> bool:
        """Whether it is large, and mostly made of modules that can be compiled in its place."""
        inside = [each for each in several if each != path and lies_in(each, path)]
        covered = sum(1 for module in forward if lies_in(module, *inside))
        return kept_bytes[path] > _LARGEST_SHARE * kept_bytes[""] and 2 * covered > num_ops[path]

    whole = {path for path in several if not is_apart(path)}
    # of modules that lie in one another the outermost, unless it is one that was taken apart
    return tuple(
        path
        for path in facts.modules
        if path in whole and not any(each in whole for each in outward(path)[1:])
    )


def with_compiled(facts: StepFacts, saved: Mapping[str, CompiledSaved], num_px: int) -> StepFacts:
    """Return the facts of the same step with blocks compiled, that save what was measured for them.

    What a block made and kept for itself takes on the size that the compiled one keeps; what only passes from one
    light operation of it to the next takes nothing, for they become one kernel, which writes over what it was the
    last to read. Nothing that a compiled block makes or keeps can be made again from outside: it is named no more.
    """

    def block_of(module: str) -> str | None:
        return next((path for path in outward(module) if path in saved), None)

    inside = {each.storage for each in facts.saved if block_of(each.key[0]) is not None}
    inner = _inner(facts, inside, {op.module: block_of(op.module) for op in facts.ops})
    plain_bytes: Counter[str] = Counter()
    for storage in facts.storages:
        if storage.index in inner:
            plain_bytes[inner[storage.index]] += storage.size_bytes
    passing, written_over = _handed_on(facts, block_of)
    storages = []
    for storage in facts.storages:
        block = inner.get(storage.index)
        if storage.index in passing:
            storage = replace(storage, size_bytes=0)  # noqa: PLW2901
        elif storage.index in written_over:
            storage = replace(storage, dies=written_over[storage.index])  # noqa: PLW2901
        elif block is not None:
            share = saved[block].at(num_px) / plain_bytes[block]
            storage = replace(storage, size_bytes=allocated_bytes(round(share * storage.size_bytes)))  # noqa: PLW2901
        storages.append(storage)
    missing = [(path, each.at(num_px)) for path, each in saved.items() if not plain_bytes[path]]
    storages += _besides(facts, missing)
    ops = (
        replace(op, kind=_KIND) if not op.backward and block_of(op.module) is not None else op
        for op in facts.ops
    )
    named = tuple(each for each in facts.saved if each.storage not in inside)
    return replace(facts, ops=tuple(ops), storages=tuple(storages), saved=named)


def _inner(facts: StepFacts, kept: Iterable[int], blocks: Mapping[str, str | None]) -> dict[int, str]:
    """Return what is kept, made in a block and read by nothing outside of it on the way forward, and the block."""
    made: dict[int, str | None] = {}
    leaving: set[int] = set()
    for op in facts.ops:
        if op.backward:
            continue
        block = blocks[op.module]
        leaving |= {each for each in op.inputs if made.get(each) != block}
        for each in op.outputs:
            made.setdefault(each, block)
    roles = {each.index: each.role for each in facts.storages}
    found = {}
    for each in kept:
        block = made.get(each)
        if block is not None and each not in leaving and roles[each] == "activation":
            found[each] = block
    return found


def _handed_on(facts: StepFacts, block_of: Callable[[str], str | None]) -> tuple[set[int], dict[int, int]]:
    """Return what light operations of a block hand to each other, and what they write over, with the one that does.

    An operation of backward has no module: it belongs to the blocks that saved what it reads.
    """
    savers: dict[int, set[str | None]] = {}
    for each in facts.saved:
        savers.setdefault(each.storage, set()).add(block_of(each.key[0]))

    def blocks(op: StepOp) -> set[str]:
        found = set[str | None]().union(*(savers.get(each, ()) for each in op.inputs))
        return {each for each in (found if op.backward else {block_of(op.module)}) if each is not None}

    touching: dict[int, list[StepOp]] = {}
    for op in facts.ops:
        for index in {*op.inputs, *op.outputs}:
            touching.setdefault(index, []).append(op)
    size_bytes = {each.index: each.size_bytes for each in facts.storages}
    passing: set[int] = set()
    written_over: dict[int, int] = {}
    for storage in facts.storages:
        ops = touching.get(storage.index, [])
        own = storage.role == "activation" and storage.index not in savers and storage.dies < len(facts.ops)
        if not own or len(ops) < 2 or not set.intersection(*map(blocks, ops)):
            continue
        last = ops[-1]
        if not any(op.flops for op in ops):
            passing.add(storage.index)
        elif not last.flops and storage.size_bytes in map(size_bytes.__getitem__, last.outputs):
            written_over[storage.index] = last.index
    return passing, written_over


def _besides(facts: StepFacts, missing: Iterable[tuple[str, int]]) -> list[Storage]:
    """Return storages of blocks that plain keep nothing for themselves; they stay to the end, to be safe."""
    found: list[Storage] = []
    for path, size_bytes in missing:
        born = [op.index for op in facts.ops if not op.backward and lies_in(op.module, path)]
        if size_bytes and born:
            index = len(facts.storages) + len(found)
            found.append(Storage(index, allocated_bytes(size_bytes), born[-1], len(facts.ops), "activation"))
    return found
