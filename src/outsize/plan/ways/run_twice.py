"""Works out what a step does whose blocks run again in backward, from what the plain step does.

    plain     a b c d | d' c' b' a'              b, c: a block
    twice     a b c d | d' b c c' b' a'          forward lets go of what the block saves; it is made again
                           -----                 before the first operation of its backward

A step that is followed on shapes with its blocks run again tells the same, and takes seconds: so sets of blocks are
compared by this, and only the one that is taken is followed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import accumulate

from outsize.plan.cost import StepCost
from outsize.plan.step import Saved, StepFacts, StepOp, Storage
from outsize.plan.ways.blocks import block_finder


@dataclass
class _BlockCall:
    """One call of a block: the operations of its forward, and what of it comes again."""

    path: str
    ops: list[StepOp] = field(default_factory=list)
    saves: set[int] = field(default_factory=set)  # storages
    last_packed: int = 0
    turn: int = -1  # the operation of backward before which it runs again; -1: it never does
    made: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    again: list[StepOp] = field(default_factory=list)

    def holds(self, op_index: int) -> bool:
        """Say whether it runs when so many operations have run."""
        return self.ops[0].index <= op_index <= self.ops[-1].index + 1


def run_twice(cost: StepCost, paths: Collection[str]) -> StepFacts:
    """Return the facts of a step in which these modules, which do not lie in each other, run again."""
    return _Twice(cost, paths).facts()


class _Twice:
    def __init__(self, cost: StepCost, paths: Collection[str]) -> None:
        self._cost, self._facts = cost, cost.facts
        self._block_of = block_finder(paths)
        self._by_path: dict[str, list[_BlockCall]] = {}
        self._keepers: dict[
            int, list[_BlockCall | None]
        ] = {}  # of saved storages; None: somebody outside of all blocks
        runs = self._found_runs()
        self._keep()
        self._runs = [run for run in runs if self._completed(run)]
        self._come = Counter[int]()  # how many operations come again before one
        for run in self._runs:
            self._come[run.turn] += len(run.again)
        self._shift = list(accumulate(self._come[op] for op in range(len(self._facts.ops) + 2)))

    def _found_runs(self) -> list[_BlockCall]:
        """Return each call of a block, with the operations of its forward."""
        runs: list[_BlockCall] = []
        before: str | None = None
        for op in self._facts.ops[: self._cost.turn]:
            path = self._block_of(op.module)
            if path is not None and path != before:
                runs.append(_BlockCall(path))
            if path is not None:
                runs[-1].ops.append(op)
            before = path
        for run in runs:
            self._by_path.setdefault(run.path, []).append(run)
        return runs

    def _keep(self) -> None:
        """Note which call of a block saves what."""
        for saved in self._facts.saved:
            run = self._run_of(saved)
            self._keepers.setdefault(saved.storage, []).append(run)
            if run is not None:
                run.saves.add(saved.storage)
                run.last_packed = max(run.last_packed, saved.packed)

    def _run_of(self, saved: Saved) -> _BlockCall | None:
        runs = self._by_path.get(self._block_of(saved.key[0]) or "", ())
        return next((run for run in runs if run.holds(saved.packed)), None)

    def _completed(self, run: _BlockCall) -> bool:
        """Fill in what of a run comes again; say whether anything does."""
        lives = self._cost.by_index
        run.made = {each for op in run.ops for each in op.outputs if lives[each].born == op.index}
        inner = {each for each in run.saves & run.made if lives[each].role == "activation"}
        if not any(self._readers_in(run, each) for each in inner):
            return False
        run.turn = min(op for each in run.saves for op in self._readers_in(run, each))
        # torch stops when all that was saved is there again
        run.again = [op for op in run.ops if op.index < run.last_packed]
        read = {each for op in run.again for each in op.inputs} - run.made
        run.given = {each for each in read if lives[each].role in ("activation", "input")}
        return True

    def _readers_in(self, run: _BlockCall, storage: int) -> list[int]:
        """Return the operations that read a storage to find a block's gradients."""
        readers = self._cost.readers.get(storage, [])
        is_own = set(map(id, self._keepers.get(storage, ()))) == {id(run)}
        layers = ((op, self._facts.ops[op].layer[0]) for op in readers)
        # which layer an operation finds gradients for is not always known
        return [op for op, layer in layers if self._block_of(layer) == run.path or (is_own and not layer)]

    def _at(self, op_index: int) -> int:
        """Return the new number of an operation."""
        return op_index + self._shift[op_index] if op_index >= 0 else op_index

    def _before(self, op_index: int) -> int:
        """Return the new number of what is done first for an operation, of those that come again for it."""
        return self._at(op_index) - self._come[op_index] if op_index >= 0 else op_index

    def facts(self) -> StepFacts:
        """Return all of it."""
        storages = [self._first(each) for each in self._facts.storages]
        ops: list[StepOp] = []
        turns: dict[int, list[_BlockCall]] = {}
        for run in self._runs:
            turns.setdefault(run.turn, []).append(run)
        reads: dict[int, dict[int, int]] = {}  # by operation of backward: what it reads in place of what
        for op in self._facts.ops:
            for run in turns.get(op.index, ()):
                twins = self._repeat(run, ops, storages)
                for each in run.saves & twins.keys():
                    for reader in self._readers_in(run, each):
                        reads.setdefault(reader, {})[each] = twins[each]
            known = reads.get(op.index, {})
            inputs = tuple(known.get(each, each) for each in op.inputs)
            ops.append(replace(op, index=len(ops), inputs=inputs))
        return replace(self._facts, ops=tuple(ops), storages=tuple(storages), saved=tuple(self._saved()))

    def _first(self, storage: Storage) -> Storage:
        """Return the life of what lies outside of the blocks, or of what their first run makes."""
        index, dies = storage.index, self._before(storage.dies)
        keepers = [run for run in self._keepers.get(index, ()) if run is not None and run.turn >= 0]
        dropping = [run for run in keepers if index in run.made]
        let_go = self._cost.let_go[index]
        if dropping and let_go <= self._cost.turn and storage.role == "activation":
            inside = {op for run in dropping for op in self._readers_in(run, index)}
            others = [op for op in self._cost.readers.get(index, ()) if op not in inside]
            dies = max([let_go, *(self._before(op + 1) for op in others)])
        # what goes into a block is there until it has run again
        dies = max([dies, *(self._at(run.turn) for run in self._runs if index in run.given)])
        return replace(storage, born=self._at(storage.born), dies=dies)

    def _repeat(self, run: _BlockCall, ops: list[StepOp], storages: list[Storage]) -> dict[int, int]:
        """Add a block's second run; return what it makes in place of what the first one did."""
        twins: dict[int, int] = {}
        begin = len(ops)
        indices = [op.index for op in run.again]
        for op in run.again:
            for each in op.outputs:
                storage = self._cost.by_index[each]
                if storage.born != op.index:
                    continue
                readers = self._readers_in(run, each) if each in run.saves else []
                gone = bisect_left(indices, min(self._cost.let_go[each], storage.dies))
                dies = self._before(readers[-1] + 1) if readers else begin + gone
                twins[each] = len(storages)
                storages.append(replace(storage, index=len(storages), born=len(ops), dies=dies, let_go=dies))
            inputs, outputs = (
                tuple(twins.get(each, each) for each in given) for given in (op.inputs, op.outputs)
            )
            ops.append(replace(op, index=len(ops), backward=True, inputs=inputs, outputs=outputs))
        return twins

    def _saved(self) -> list[Saved]:
        """Return what is saved outside of the blocks, and what goes into them."""
        found = []
        for saved in self._facts.saved:
            run = self._run_of(saved)
            if run is None or run.turn < 0:
                found.append(saved)
        for run in self._runs:
            lives = [self._cost.by_index[each] for each in sorted(run.given)]
            begin = run.ops[0]
            found += [
                Saved((run.path, begin.call, ordinal), each.index, each.size_bytes, begin.index)
                for ordinal, each in enumerate(each for each in lives if each.role == "activation")
            ]
        return sorted(found, key=lambda saved: saved.packed)
