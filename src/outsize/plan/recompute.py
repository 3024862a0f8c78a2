"""Which saved tensors can be made again from others that are kept, what that costs, and which of them to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outsize.plan.cost import Changed, StepCost
from outsize.plan.step import Key, StepOp

# Operations that read and write each number about once: made again in a fraction of the time of the convolution
# between them. Names are torch's; a trailing underscore (in place) and an overload are left out.
# `strategies/watch.py` knows all of them, a test sees to it: what it does not know would be planned in vain.
_NORMS = {"native_batch_norm", "cudnn_batch_norm", "native_group_norm", "native_layer_norm"}
_ACTIVATIONS = {"relu", "leaky_relu", "elu", "celu", "gelu", "silu", "mish", "softplus"}
_ACTIVATIONS |= {"hardswish", "hardsigmoid", "hardtanh", "sigmoid", "tanh", "native_dropout"}
_MOVES = {"add", "sub", "mul", "div", "cat", "_to_copy", "clone", "constant_pad_nd", "reflection_pad2d"}
_MOVES |= {"replication_pad2d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"}
_POOLS = {"max_pool2d_with_indices"}  # its indices take eight bytes for each of its results
CHEAP = _NORMS | _ACTIVATIONS | _MOVES | _POOLS
_MAX_DEPTH = 4  # recipes that are made from recipes

OpSeconds = Callable[[StepOp], float]


@dataclass(frozen=True)
class Recipe:
    """How to make a saved storage again: from which others, and by which operations."""

    storage: int
    keys: tuple[Key, ...]  # of all saved tensors that lie in it
    leaves: frozenset[int]  # storages that must be there
    held: frozenset[int]  # those of them that would be gone by then, and are kept in its place
    ops: tuple[StepOp, ...]
    freed_bytes: int  # less what is held
    back: int  # the operation that needs it first
    cost_s: float


def find_recipes(cost: StepCost, op_s: OpSeconds) -> list[Recipe]:
    """Return a recipe for each saved storage that cheap operations make from less than it holds itself."""
    keys: dict[int, list[Key]] = {}
    for saved in cost.facts.saved:
        keys.setdefault(saved.storage, []).append(saved.key)
    found = []
    for storage, named in keys.items():
        back = cost.first_backward.get(storage)
        about = cost.by_index[storage]
        if back is None or about.role != "activation":
            continue
        growth = _Growth(back)
        if not _grow(cost, storage, growth, _MAX_DEPTH):
            continue
        freed_bytes = about.size_bytes - sum(cost.by_index[each].size_bytes for each in growth.held)
        if freed_bytes > 0:
            ops = tuple(growth.ops.values())
            leaves, held = frozenset(growth.leaves), frozenset(growth.held)
            seconds = sum(map(op_s, ops))
            found.append(Recipe(storage, tuple(named), leaves, held, ops, freed_bytes, back, seconds))
    return found


def choose_recipes(cost: StepCost, recipes: Sequence[Recipe], budget_bytes: float) -> tuple[Recipe, ...]:
    """Take recipes, the most bytes for a second first, until the step fits; all of them where it never does.

    What another recipe is made from stays: a chain of recipes back to the first layer would be a second forward.
    """
    chosen: list[Recipe] = []
    gone: set[int] = set()
    needed: set[int] = set()
    peak_bytes = cost.peak_bytes()
    for recipe in sorted(recipes, key=lambda each: each.cost_s / each.freed_bytes):
        if peak_bytes <= budget_bytes:
            break
        if recipe.storage in needed or not recipe.leaves.isdisjoint(gone):
            continue
        chosen.append(recipe)
        gone.add(recipe.storage)
        needed |= recipe.leaves
        peak_bytes = cost.peak_bytes(changed_by(chosen))
    return tuple(chosen)


def changed_by(recipes: Sequence[Recipe]) -> Changed:
    """Return what recipes change in the lives of storages."""
    anew = {recipe.storage: recipe.back for recipe in recipes}
    held: dict[int, int] = {}
    for recipe in recipes:
        for each in recipe.held:
            held[each] = max(held.get(each, 0), recipe.back + 1)
    return Changed(anew, held)


@dataclass
class _Growth:
    """A recipe while it grows from a storage towards what is there."""

    needed_at: int
    leaves: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    ops: dict[int, StepOp] = field(default_factory=dict)  # in the order that they run


def _grow(cost: StepCost, storage: int, growth: _Growth, depth: int) -> bool:
    """Add what makes a storage; False where one of its operations is dear, or has changed its input since."""
    writers = cost.writers.get(storage, [])
    if depth == 0 or not writers or cost.by_index[storage].born != writers[0].index:
        return False
    # mean and deviation of a norm, the mask of dropout: small, and needed to make the first result again
    if writers[0].outputs[0] != storage and writers[0].kind not in _POOLS:
        return False
    if not all(op.kind.rstrip("_") in CHEAP for op in writers):
        return False
    for source in dict.fromkeys(each for op in writers for each in op.inputs if each != storage):
        about = cost.by_index[source]
        is_lasting = about.role in (
            "weight",
            "optimizer",
        )  # running statistics change, but no recipe uses them
        is_changed = any(op.index > writers[0].index for op in cost.writers.get(source, []))
        if is_lasting or (about.dies > growth.needed_at and not is_changed):
            growth.leaves.add(source)
        elif not _grow(cost, source, growth, depth - 1):
            if is_changed:
                return False
            growth.leaves.add(source)
            growth.held.add(source)
    growth.ops.update({op.index: op for op in writers})
    return True
