"""Predicts from a step's facts what it holds at its fullest, also where a plan recomputes what it could keep.

A storage that is recomputed lives twice, with nothing in between:

    op           0 . . . . . . . . | . . . . . . . . 17
    kept         ----born=================dies-----
    recomputed   ----born==|...............|=======--     forward lets go; first use in backward
    twice        ----born==============|------------      what leaves a block stays for those outside,
                                         |=======--       and is recomputed for those inside
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from outsize.plan.facts import TrainFacts
from outsize.plan.step import StepFacts, StepOp, Storage
from outsize.units import Size


@dataclass(frozen=True)
class Changed:
    """What a plan changes in the lives of storages."""

    # dropped after forward, recomputed at this operation
    recomputed: Mapping[int, int] = field(default_factory=dict)
    # kept until before this operation, for others to be made
    held: Mapping[int, int] = field(default_factory=dict)
    # kept until before the first operation, and recomputed at the second
    twice: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    # bytes on the way to what is recomputed, more than the operation makes itself when they are gone
    passing: Mapping[int, int] = field(default_factory=dict)


NOTHING = Changed()


def merged(first: Changed, second: Changed) -> Changed:
    """Return both changes together; of a storage that both make twice the second's word holds."""
    held = dict(first.held)
    for storage, until in second.held.items():
        held[storage] = max(held.get(storage, 0), until)
    passing = dict(first.passing)
    for op, num_bytes in second.passing.items():
        passing[op] = passing.get(op, 0) + num_bytes
    return Changed({**first.recomputed, **second.recomputed}, held, {**first.twice, **second.twice}, passing)


@dataclass(frozen=True)
class StepCost:
    """A step's facts, indexed by what is asked of them again and again."""

    facts: StepFacts
    is_part: bool = False  # of a step in several: gradients of the parts before are there

    @cached_property
    def turn(self) -> int:
        """The first operation of backward."""
        return next((op.index for op in self.facts.ops if op.backward), len(self.facts.ops))

    @cached_property
    def let_go(self) -> dict[int, int]:
        """The operation before which forward lets go of each storage that nobody keeps for backward.

        As it was seen, or else an estimate: not after its last use, for who calls a module holds what it gives to it
        until the module returns, or longer. And autocast holds its copies of weights until backward begins.
        """
        return {**self._estimated, **self._seen}

    @cached_property
    def _seen(self) -> dict[int, int]:
        return {each.index: each.let_go for each in self.facts.storages if each.let_go is not None}

    @cached_property
    def _estimated(self) -> dict[int, int]:
        if len(self._seen) == len(self.facts.storages):
            return {}
        forward = self.facts.ops[: self.turn]
        makers: dict[int, str] = {}
        found: dict[int, int] = {}
        ends = _Ends(forward)
        for op in forward:
            for each in op.outputs:
                makers.setdefault(each, op.module)
            for each in (*op.inputs, *op.outputs):
                end = ends.of(op, makers[each]) if each in makers else op.index + 1
                found[each] = max(found.get(each, 0), end)
        for each, (maker, *_) in self.writers.items():
            sources = {self.by_index[source].role for source in maker.inputs}
            if maker.kind == "_to_copy" and sources == {"weight"}:
                found[each] = self.turn
        # of a block that runs again in backward, or nobody's in forward
        for storage in self.facts.storages:
            found.setdefault(storage.index, storage.dies)
        return found

    @cached_property
    def first_backward(self) -> dict[int, int]:
        """The first backward operation that reads each storage."""
        return {each: ops[0] for each, ops in self.readers.items()}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The backward operations that read each storage, in order."""
        found: dict[int, list[int]] = {}
        for op in self.facts.ops:
            if op.backward:
                for each in op.inputs:
                    found.setdefault(each, []).append(op.index)
        return found

    @cached_property
    def writers(self) -> dict[int, list[StepOp]]:
        """The forward operations that make a storage and then change it in place, in order."""
        found: dict[int, list[StepOp]] = {}
        for op in self.facts.ops:
            if not op.backward:
                for each in op.outputs:
                    found.setdefault(each, []).append(op)
        return found

    @cached_property
    def packed(self) -> dict[int, int]:
        """The place of the last of the saved tensors that lie in each storage, in the order of packing."""
        return {saved.storage: place for place, saved in enumerate(self.facts.saved)}

    @cached_property
    def asked(self) -> dict[int, int]:
        """The place of the saved tensor that is unpacked first before each operation of backward."""
        first = self.first_backward
        return dict(
            sorted((first[storage], place) for storage, place in self.packed.items() if storage in first)
        )

    @cached_property
    def made_bytes(self) -> list[int]:
        """What each operation makes: memory that is not taken yet while its inputs are recomputed."""
        found = [0] * len(self.facts.ops)
        for each in self.facts.storages:
            if each.born >= 0:
                found[each.born] += each.size_bytes
        return found

    @cached_property
    def lasting_bytes(self) -> int:
        """What is there before a step: weights, the optimizer's state, the batch."""
        return sum(each.size_bytes for each in self.facts.storages if each.born < 0)

    @cached_property
    def batch_bytes(self) -> int:
        """What a step is given."""
        given = [each for each in self.facts.storages if each.role == "input" and each.born < 0]
        return sum(each.size_bytes for each in given)

    @cached_property
    def by_index(self) -> dict[int, Storage]:
        """Storages by their number."""
        return {each.index: each for each in self.facts.storages}

    def peak_bytes(self, changed: Changed = NOTHING) -> int:
        """Return the most that is held at once."""
        return max(self.live_bytes(changed), default=0)

    def live_bytes(self, changed: Changed = NOTHING) -> list[int]:
        """Return the bytes that are held during each operation."""
        num_ops = len(self.facts.ops)
        change = [0] * (num_ops + 1)
        for op, passing_bytes in changed.passing.items():
            change[op] += passing_bytes
            change[op + 1] -= passing_bytes
        for each in self.facts.ops:
            change[each.index] += each.workspace_bytes
            change[each.index + 1] -= each.workspace_bytes
        for storage, start, end in self.spans(changed):
            change[max(0, start)] += storage.size_bytes
            change[min(num_ops, end)] -= storage.size_bytes
        return list(accumulate(change))[:num_ops]

    def spans(self, changed: Changed = NOTHING) -> Iterator[tuple[Storage, int, int]]:
        """Yield each storage with the operations from which to before which it is there, twice if it comes again."""
        for storage in self.facts.storages:
            for start, end in self.spans_of(storage, changed):
                yield storage, start, end

    def spans_of(self, storage: Storage, changed: Changed) -> list[tuple[int, int]]:
        """Return the operations from which to before which a storage is there, twice if it comes again."""
        index = storage.index
        if self.is_part and storage.role == "gradient":
            return [(-1, storage.dies), (storage.born, storage.born + 2)]  # it is made, then added
        if index in changed.recomputed:
            return [(storage.born, self.let_go[index]), (changed.recomputed[index], storage.dies)]
        if index in changed.twice:
            gone, back = changed.twice[index]
            return [(storage.born, gone), (back, storage.dies)]
        return [(storage.born, max(storage.dies, changed.held.get(index, 0)))]


class _Ends:
    """Where calls of modules end, in a row of operations that each know the innermost module."""

    def __init__(self, ops: tuple[StepOp, ...]) -> None:
        self._ops = ops
        self._known: dict[tuple[int, str], int] = {}

    def of(self, op: StepOp, maker: str) -> int:
        """Return where the outermost module returns that this operation runs in and `maker` does not."""
        inside = op.module.split(".") if op.module else []
        outside = maker.split(".") if maker else []
        shared = 0
        while shared < min(len(inside), len(outside)) and inside[shared] == outside[shared]:
            shared += 1
        if shared == len(inside):
            return op.index + 1  # read by the one that made it, or by one around it
        caller, path = ".".join(inside[:shared]), ".".join(inside[: shared + 1])
        if (op.index, path) not in self._known:
            end = self._returns(op.index, path)
            # x = block(cat(skip, up(x))): the name keeps what `up` was given until there is something new to name
            after = end
            while after < len(self._ops) and self._ops[after].module == caller:
                after += 1
            following = self._ops[after].module if end < after < len(self._ops) else caller
            if following != caller and (not caller or following.startswith(f"{caller}.")):
                end = self._returns(after, ".".join(following.split(".")[: shared + 1]))
            self._known[op.index, path] = end
        return self._known[op.index, path]

    def _returns(self, start: int, path: str) -> int:
        """Return the operation after the last one in a row that runs in a module."""
        end = start
        while end < len(self._ops) and f"{self._ops[end].module}.".startswith(f"{path}."):
            end += 1
        return end


def summary(facts: StepFacts, batch: int, side_px: Size) -> TrainFacts:
    """Sum up a training step."""
    cost = StepCost(facts)
    saved = {each.storage for each in facts.saved}
    lasting = ("weight", "gradient", "optimizer")
    return TrainFacts(
        batch=batch,
        side_px=side_px,
        peak_bytes=cost.peak_bytes(),
        saved_bytes=sum(each.size_bytes for each in facts.storages if each.index in saved),
        weights_bytes=sum(each.size_bytes for each in facts.storages if each.role in lasting),
        flops=sum(op.flops for op in facts.ops),
        moved_bytes=sum(op.moved_bytes for op in facts.ops),
        num_ops=len(facts.ops),
    )
