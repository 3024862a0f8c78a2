"""Which saved tensors can be recomputed from others that are kept, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from outsize.plan.cost import StepCost
from outsize.plan.step import Key, StepOp
from outsize.plan.times import OpSeconds

# Operations that read and write each number about once: recomputed in a fraction of the time of the convolution
# between them. Names are torch's; a trailing underscore (in place) and an overload are left out.
# `strategies/saved/watch.py` knows all of them, a test sees to it: what it does not know would be planned in vain.
_NORMS = {"native_batch_norm", "cudnn_batch_norm", "fused_norm", "native_group_norm", "native_layer_norm"}
_NORMS |= {"_fused_rms_norm"}
_ACTIVATIONS = {"relu", "leaky_relu", "elu", "celu", "gelu", "silu", "mish", "softplus"}
_ACTIVATIONS |= {"hardswish", "hardsigmoid", "hardtanh", "sigmoid", "tanh", "native_dropout", "_softmax"}
_MOVES = {"add", "sub", "mul", "div", "cat", "_to_copy", "clone", "constant_pad_nd", "reflection_pad2d"}
_MOVES |= {"replication_pad2d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "roll"}
_MOVES |= {"masked_fill", "index"}
_POOLS = {"max_pool2d_with_indices"}  # its indices take eight bytes for each of its results
CHEAP = _NORMS | _ACTIVATIONS | _MOVES | _POOLS
# Operations that are worth it where they make many bytes of few products: the first layer, 1 x 1, transposed 2 x 2,
# the wide half of a transformer's MLP, attention. A plan names each that may run again; the rest of them are never
# replayed, whatever starts from their results.
_ATTENTION = {f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")}
_ATTENTION |= {"_scaled_dot_product_flash_attention_for_cpu"}
COSTLY = {"convolution", "addmm", "mm", "bmm", "baddbmm"} | _ATTENTION
OF_IMAGES = frozenset({"_to_copy", "constant_pad_nd", "sub", "div", "mul"})  # before they meet a weight
_MAX_DEPTH = 4  # recipes that are made from recipes
# what these make is passed on in one pass on a GPU to a sum and a ReLU behind it
_FUSED = {"native_batch_norm", "cudnn_batch_norm", "fused_norm"}
_PASSED_ON = {"add", "add_", "relu", "relu_"}

Call = tuple[str, int]  # path of a module, and which of its calls


@dataclass(frozen=True)
class StorageRecipe:
    """How to make a saved storage again: from which others, and by which operations."""

    storage: int
    keys: tuple[Key, ...]  # of all saved tensors that lie in it
    leaves: frozenset[int]  # storages that must be there
    held: frozenset[int]  # those of them that would be gone by then, and are kept in its place
    ops: tuple[StepOp, ...]
    freed_bytes: int  # less what is held
    back: int  # the operation that needs it first
    cost_s: float
    passing_bytes: int = 0  # of what is made on the way to it, and let go of when it is there
    costly: tuple[Call, ...] = ()  # where its costly operations run
    through: frozenset[int] = (
        frozenset()
    )  # saved storages that it makes on the way, and again for their own use


# How many costly operations a recipe may have on one way from what would be gone, and how many storages it may pass
# there that are recomputed for themselves. Other long ways are for the mix to put together from several recipes.
_KINDS = ((0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4))
_LARGE_SHARES = (0.0, 0.5)  # of the storage that is made, that one must have to be passed
_LARGE_SHARE = (
    0.02  # of the largest that is saved, that one must have so that ways past others are looked at for it
)


def find_recipes(cost: StepCost, op_s: OpSeconds) -> list[StorageRecipe]:
    """Return recipes for each saved storage that operations make from less than it holds itself.

    There may be several for one: by cheap operations alone or with costly ones, and from what is saved or past it. What
    is saved, and recomputed before its time, would have to stay for its own use: it may be made on the way, and a
    second time then, as the skip of a U-Net, which is used at both ends of backward:

        s, a skip, is made from a        the other end of backward needs cat(s, b)
        from s and b: s must be there from then on        from a and b: s is made, and let go of again
    """
    keys: dict[int, list[Key]] = {}
    for saved in cost.facts.saved:
        keys.setdefault(saved.storage, []).append(saved.key)
    found: list[StorageRecipe] = []
    large_bytes = _LARGE_SHARE * max((cost.by_index[each].size_bytes for each in keys), default=0)
    for storage, named in keys.items():
        back = cost.first_backward.get(storage)
        if back is None or cost.by_index[storage].role != "activation" or cost.let_go[storage] > cost.turn:
            continue  # the last: somebody holds it in backward
        several: dict[tuple[StepOp, ...], StorageRecipe] = {}
        is_large = cost.by_index[storage].size_bytes >= large_bytes
        for (num_costly, num_passes), share in product(_KINDS if is_large else _KINDS[:2], _LARGE_SHARES):
            start = _Growth(back, share * cost.by_index[storage].size_bytes)
            growth = _grown(cost, storage, start, _MAX_DEPTH + num_passes, num_costly, num_passes)
            recipe = None if growth is None else _recipe(cost, storage, tuple(named), growth, op_s)
            if recipe is not None:
                several.setdefault(recipe.ops, recipe)
        found += several.values()
    return found


def _recipe(
    cost: StepCost, storage: int, keys: tuple[Key, ...], growth: _Growth, op_s: OpSeconds
) -> StorageRecipe | None:
    freed_bytes = cost.by_index[storage].size_bytes
    freed_bytes -= sum(cost.by_index[each].size_bytes for each in growth.held)
    if freed_bytes <= 0:
        return None
    ops = tuple(growth.ops[index] for index in sorted(growth.ops))
    return StorageRecipe(
        storage,
        keys,
        frozenset(growth.leaves),
        frozenset(growth.held),
        ops,
        freed_bytes,
        growth.needed_at,
        sum(map(op_s, ops)),
        _passing_bytes(cost, ops, storage),
        tuple(dict.fromkeys((op.module, op.call) for op in ops if op.kind in COSTLY)),
        frozenset(growth.through),
    )


def _passing_bytes(cost: StepCost, ops: Sequence[StepOp], target: int) -> int:
    """Return the most that is held at once of what operations make on the way to a storage.

    What a batch norm makes is not held where the sum or the ReLU behind it are of the same pass.
    """
    readers: dict[int, list[StepOp]] = {}
    for op in ops:
        for each in op.inputs:
            readers.setdefault(each, []).append(op)
    held: dict[int, int] = {}
    passed: set[int] = set()
    most_bytes = 0
    for op in ops:
        joins = op.kind in _FUSED or (op.kind in _PASSED_ON and not passed.isdisjoint(op.inputs))
        for each in op.outputs:
            if each == target or each not in readers:
                continue
            if joins and all(
                reader.kind in _PASSED_ON for reader in readers[each] if reader.index > op.index
            ):
                passed.add(each)
            else:
                held[each] = cost.by_index[each].size_bytes
        most_bytes = max(most_bytes, sum(held.values()))
        held = {each: size for each, size in held.items() if readers[each][-1].index > op.index}
    return most_bytes


@dataclass
class _Growth:
    """A recipe while it grows from a storage towards what is there."""

    needed_at: int
    large_bytes: float  # what is smaller, and there, is a leaf
    leaves: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    through: set[int] = field(default_factory=set)
    ops: dict[int, StepOp] = field(default_factory=dict)

    def copy(self) -> _Growth:
        """Return one that can grow apart from this."""
        sets = set(self.leaves), set(self.held), set(self.through)
        return _Growth(self.needed_at, self.large_bytes, *sets, dict(self.ops))


def _grown(
    cost: StepCost, storage: int, growth: _Growth, depth: int, num_costly: int, num_passes: int
) -> _Growth | None:
    """Return it with what makes a storage; None where an operation is too costly, or has changed its input since."""
    writers = cost.writers.get(storage, [])
    if depth == 0 or not writers or cost.by_index[storage].born != writers[0].index:
        return None
    # mean and deviation of a norm, the mask of dropout: small, and needed to make the first result again
    if writers[0].outputs[0] != storage and writers[0].kind not in _POOLS:
        return None
    if not all(op.can_repeat or op.kind in OF_IMAGES for op in writers):
        return None  # as of a frozen part: to hold what it starts from would cost more than it may free
    is_costly = writers[0].kind in COSTLY
    if is_costly and not all(cost.by_index[each].size_bytes for each in writers[0].inputs):
        return None  # its weight is on the host when others than its own block need it
    num_costly -= is_costly
    if num_costly < 0 or not all(op.kind.rstrip("_") in CHEAP for op in writers[is_costly:]):
        return None
    for source in dict.fromkeys(each for op in writers for each in op.inputs if each != storage):
        about = cost.by_index[source]
        later = [op for op in cost.writers.get(source, []) if op.index > writers[0].index]
        is_weight = about.role in ("weight", "optimizer")
        # The optimizer comes when all is made, and norms change running statistics, which no recipe uses.
        is_changed = any(not is_weight or _is_in_forward(cost, op) for op in later)
        is_lasting = is_weight and not is_changed
        is_there = is_lasting or (about.dies > growth.needed_at and not is_changed)
        may_pass = num_passes > 0 and source in cost.packed and about.size_bytes >= growth.large_bytes
        if is_lasting or (is_there and not may_pass):
            growth.leaves.add(source)
            continue
        left = (
            (1, num_passes - 1) if is_there else (num_costly, num_passes)
        )  # what is passed has a way of its own
        deeper = _grown(cost, source, growth.copy(), depth - 1, *left)
        if deeper is not None:
            growth = deeper
            growth.through |= {source} if is_there else set()
        elif is_changed:
            return None
        else:
            growth.leaves.add(source)
            growth.held |= set() if is_there else {source}
    growth.ops.update({op.index: op for op in writers})
    return growth


def _is_in_forward(cost: StepCost, op: StepOp) -> bool:
    """Whether a change is one of forward's own: of a buffer that a model keeps a mean in, and no norm's."""
    return op.index < cost.turn and op.kind not in _NORMS
