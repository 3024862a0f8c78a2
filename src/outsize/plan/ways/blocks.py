"""Modules that keep only what goes into them and run forward again in backward; sets of them, coarse to fine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from outsize.plan.cost import Changed, StepCost
from outsize.plan.times import OpSeconds

_LARGEST_SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of all saved bytes, that one block of a set may keep


@dataclass(frozen=True)
class Blocks:
    """A set of modules: what running them again drops, and the time of their forward."""

    paths: tuple[str, ...]
    changed: Changed
    cost_s: float


def list_blocks(cost: StepCost, op_s: OpSeconds, never: Collection[str] = ()) -> list[Blocks]:
    """Return sets of blocks, from few large ones to many small ones; none that is or holds one of `never`.

    A set holds the outermost modules that keep no more than a share: one that keeps more would be as full as the
    step without it when its turn comes.
    """
    kept_bytes, called = _kept_bytes(cost), _called(cost, never)
    parents = {path.rpartition(".")[0] for path in cost.facts.modules if path}
    found: list[Blocks] = []
    for share in _LARGEST_SHARES:
        small = [path for path in called if kept_bytes.get(path, 0) <= share * kept_bytes.get("", 0)]
        outermost = [path for path in small if not any(each in small for each in outward(path)[1:])]
        # a single layer keeps little more than its input
        blocks = run_again(cost, [path for path in outermost if path in parents], op_s)
        if blocks.changed.recomputed and all(blocks.paths != each.paths for each in found):
            found.append(blocks)
    return found


def may_run_again(cost: StepCost, never: Collection[str], largest_share: float) -> list[tuple[str, int]]:
    """Return modules of several layers and what they keep, at most a share of all, the fullest first; parts are too."""
    kept_bytes = _kept_bytes(cost)
    parents = {path.rpartition(".")[0] for path in cost.facts.modules if path}
    most_bytes = largest_share * kept_bytes.get("", 0)
    found = [(path, kept_bytes.get(path, 0)) for path in _called(cost, never) if path in parents]
    return sorted((each for each in found if 0 < each[1] <= most_bytes), key=lambda each: -each[1])


def _kept_bytes(cost: StepCost) -> dict[str, int]:
    """Return what each module keeps for backward."""
    saved = {each.storage: each.key[0] for each in cost.facts.saved}
    kept_bytes: dict[str, int] = {}
    for storage, module in saved.items():
        for path in outward(module):
            kept_bytes[path] = kept_bytes.get(path, 0) + cost.by_index[storage].size_bytes
    return kept_bytes


def _called(cost: StepCost, never: Collection[str]) -> list[str]:
    refused = {path for each in never for path in outward(each)}
    return [path for path in cost.facts.modules if path and path not in refused]


def run_again(cost: StepCost, paths: Sequence[str], op_s: OpSeconds) -> Blocks:
    """Return what it drops when modules that do not lie in each other run again, and the time that takes."""
    block_of = block_finder(paths)
    kept_by: dict[int, set[str | None]] = {}
    for saved in cost.facts.saved:
        kept_by.setdefault(saved.storage, set()).add(block_of(saved.key[0]))
    inner: dict[str, list[int]] = {}
    leaving: dict[str, list[int]] = {}
    for storage, keepers in kept_by.items():
        made = block_of(cost.writers[storage][0].module) if storage in cost.writers else None
        activation = storage in cost.first_backward and cost.by_index[storage].role == "activation"
        if made is not None and made in keepers and activation:
            (inner if keepers == {made} else leaving).setdefault(made, []).append(storage)
    given = _given(cost, block_of)
    begins: dict[str | None, int] = {}
    for op in cost.facts.ops[: cost.turn]:
        begins.setdefault(block_of(op.module), op.index)
    for path in list(inner):
        # one that begins behind the turn does so behind derivatives that are taken on the way
        if path not in begins or _overwritten(cost, given.get(path, ()), begins[path]):
            del inner[path]
    recomputed: dict[int, int] = {}
    held: dict[int, int] = {}
    twice: dict[int, tuple[int, int]] = {}
    for path, storages in inner.items():
        # the whole block is run again when the first of its tensors is needed; one that leaves the block is
        # needed inside after all uses outside, since backward goes the other way round
        shared = leaving.get(path, [])
        needed = [cost.first_backward[each] for each in storages] + [
            cost.readers[each][-1] for each in shared
        ]
        recomputed.update(dict.fromkeys(storages, min(needed)))
        for each in shared:
            outside = cost.readers[each][:-1]
            twice[each] = (outside[-1] + 1 if outside else cost.let_go[each], min(needed))
        last = max(cost.readers[each][-1] for each in (*storages, *shared))
        held.update({each: max(held.get(each, 0), last + 1) for each in given.get(path, ())})
    seconds = sum(op_s(op) for op in cost.facts.ops if not op.backward and block_of(op.module) in inner)
    return Blocks(tuple(sorted(inner)), Changed(recomputed, held, twice), seconds)


def block_finder(paths: Collection[str]) -> Callable[[str], str | None]:
    """Return what tells which of these blocks a module lies in; None: in none of them."""
    known, found = set(paths), dict[str, str | None]()

    def block_of(module: str) -> str | None:
        if module not in found:
            found[module] = next((path for path in outward(module) if path in known), None)
        return found[module]

    return block_of


def _overwritten(cost: StepCost, given: Iterable[int], begin: int) -> bool:
    """Say whether what goes into a block is changed in place from then on: a second run would begin with that."""
    return any(op.index >= begin for each in given for op in cost.writers.get(each, ()))


def _given(cost: StepCost, block_of: Callable[[str], str | None]) -> dict[str, set[int]]:
    """Return what goes into each block: it is held until backward has left the block, whoever else needs it."""
    makers: dict[int, str | None] = {}
    found: dict[str, set[int]] = {}
    for op in cost.facts.ops[: cost.turn]:
        block = block_of(op.module)
        for each in op.inputs if block is not None else ():
            if makers.get(each) != block and cost.by_index[each].role in ("activation", "input"):
                found.setdefault(str(block), set()).add(each)
        for each in op.outputs:
            makers.setdefault(each, block)
    return found


def lies_in(module: str, *paths: str) -> bool:
    """Say whether a module is one of these or lies in one; all of them lie in the model itself, whose path is ""."""
    return "" in paths or any(module == each or module.startswith(f"{each}.") for each in paths)


def outward(module: str) -> list[str]:
    """Return a module and all that it lies in, innermost first: "a.b" -> ["a.b", "a", ""]."""
    paths = [module]
    while module:
        module = module.rpartition(".")[0]
        paths.append(module)
    return paths
