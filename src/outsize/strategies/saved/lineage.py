"""Reads from autograd's own graph how a tensor was made: no operation has to be watched for it."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outsize.strategies.saved.recipes import CallRecipe, Normed, Source, fuses
from outsize.strategies.saved.values import Kept, Signal, Slot, Value

_aten = torch.ops.aten
_MARK = "outsize"  # among what a node of the graph lets others note on it
_DEEPEST = 4  # operations in a row; more are not worth reading

# node of the graph -> what it is the backward of, and how it calls its epsilon
_NORMS = {
    "NativeBatchNormBackward0": (_aten.native_batch_norm.default, "_saved_eps"),
    "CudnnBatchNormBackward0": (_aten.cudnn_batch_norm.default, "_saved_epsilon"),
}
_NORM_FUNCS = [func for func, _ in _NORMS.values()]
_FUSED = "FusedNormBackward"  # our own, with the ReLU behind it where its node says so
# of one input, with what else the node knows
_UNARY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "ReluBackward0": (_aten.relu.default, ()),
    "SiluBackward0": (_aten.silu.default, ()),
    "HardswishBackward0": (_aten.hardswish.default, ()),
    "LeakyReluBackward0": (_aten.leaky_relu.default, ("negative_slope",)),
}


def known(node: Any) -> Value | Kept | None:
    """Return the value that was noted for the first result of a node, if anybody still holds it."""
    found = node.metadata.get(_MARK)
    return None if found is None else found()


def note(node: Any, value: Value | Kept) -> None:
    """Note on a node what its first result is, but do not hold it: nodes live longer than what is saved for them."""
    node.metadata[_MARK] = weakref.ref(value)


def read(tensor: Tensor) -> CallRecipe | Normed | None:
    """Return how a tensor that has a history was made, from what is saved already; None where that is not enough.

        conv --x--> batch norm -----> sum ----> ReLU --> tensor
               |    ^ mean, deviation  ^
             saved  saved            other, known because it was saved

    The caller sees to it that the tensor was not changed behind the back of the graph.
    """
    return _recipe(tensor.grad_fn, tensor, _DEEPEST)


def is_saved_by_its_maker(recipe: CallRecipe | Normed) -> bool:
    """Whether backward of an operation needs its result, so that it is saved before anybody else can use it."""
    return recipe.func in (_aten.relu.default, _aten.relu_.default)


def is_fused_norm(tensor: Tensor) -> bool:
    """Whether the node of a tensor is our own, and nobody has changed the tensor since."""
    node: Any = tensor.grad_fn
    return type(node).__name__ == _FUSED and bool(tensor._version == node.version)


def alike(ours: CallRecipe | Normed | None, theirs: CallRecipe | Normed | None) -> bool:
    """Whether two recipes do the same to the same tensors."""
    return ours is not None and theirs is not None and _form(ours) == _form(theirs)


def _form(recipe: CallRecipe | Normed) -> tuple[Any, ...]:
    """Return the operations of a recipe and what they start from, for comparison."""
    if isinstance(recipe, Normed):
        rows = (None if each is None else Source(each, None) for each in (recipe.weight, recipe.bias))
        form: tuple[Any, ...] = (_name(recipe.func), _leaf(recipe.x), *map(_leaf, rows), True, recipe.eps)
        if recipe.other is not None:
            form = ("aten::add", frozenset((form, _leaf(recipe.other))))
        return ("aten::relu", form) if recipe.relu else form
    name = _name(recipe.func)
    if recipe.func in _NORM_FUNCS:  # all but running statistics and momentum, which have done their work
        x, weight, bias, _, _, training, _, eps = recipe.args
        return (name, _leaf(x), _leaf(weight), _leaf(bias), training, eps)
    parts = _part(recipe.args)
    if name == "aten::add" and not recipe.kwargs and len(recipe.sources) == 2:
        return (name, frozenset(parts))
    return (name, *map(str, recipe.kwargs.items()), *parts)


def _part(argument: Any) -> Any:
    if isinstance(argument, Source):
        return _leaf(argument)
    return tuple(map(_part, argument)) if isinstance(argument, list) else argument


def _leaf(source: Source | None) -> Any:
    """Return the form of what makes a source, or where it lies in memory at which version."""
    if source is None:
        return None
    value, geometry = source.value, source.geometry
    if value.away is not None:
        return (id(value.away), value.version, geometry or value.geometry)
    if value.tensor is not None:
        return (id(value.tensor.untyped_storage()), value.version, geometry or value.geometry)
    assert value.recipe is not None
    form = _form(value.recipe)
    return form if geometry is None else (form, geometry)


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removesuffix("_")


def _recipe(node: Any, like: Tensor, depth: int) -> CallRecipe | Normed | None:
    """Return the recipe of the first result of a node, which is of the size and type of `like`."""
    kind = type(node).__name__
    if kind == "ReluBackward0":
        found = _normed(node.next_functions[0], like, depth, relu=True)
        if found is not None:
            return found
    if kind in _NORMS or kind == _FUSED:
        return _norm(node, like, None, relu=False)
    if kind == "ToCopyBackward0":
        return _cast(node, like)
    if depth == 0:
        return None
    if kind in _UNARY:
        func, names = _UNARY[kind]
        source = _source(node.next_functions[0], like, depth)
        rest = [getattr(node, f"_saved_{name}") for name in names]
        return None if source is None else CallRecipe(func, [source, *rest], {})
    if kind == "AddBackward0":
        found = _normed((node, 0), like, depth, relu=False)
        return found or _sum(node, like, depth)
    return None


def _normed(edge: tuple[Any, int], like: Tensor, depth: int, *, relu: bool) -> Normed | None:
    """Return the recipe of a batch norm, or of a sum with one, that ends here or in a ReLU."""
    node, number = edge
    kind = type(node).__name__
    if number == 0 and (kind in _NORMS or kind == _FUSED):
        return _norm(node, like, None, relu=relu)
    if number != 0 or kind != "AddBackward0" or not _is_plain_sum(node):
        return None
    edges = node.next_functions
    for norm, other in (edges, edges[::-1]):
        if _ends_in_norm(norm[0]) and norm[1] == 0:
            added = _source(other, like, depth)
            return None if added is None else _norm(norm[0], like, added, relu=relu)
    return None


def _ends_in_norm(node: Any) -> bool:
    kind = type(node).__name__
    return kind in _NORMS or (kind == _FUSED and not node.relu)


def _is_plain_sum(node: Any) -> bool:
    return node._saved_alpha == 1 and len(node.next_functions) == 2


def _sum(node: Any, like: Tensor, depth: int) -> CallRecipe | None:
    if not _is_plain_sum(node):
        return None
    first, second = (_source(edge, like, depth) for edge in node.next_functions)
    return None if first is None or second is None else CallRecipe(_aten.add.Tensor, [first, second], {})


def _source(edge: tuple[Any, int], like: Tensor, depth: int) -> Source | None:
    """Return an input of a node whose inputs and result are alike in size and type."""
    before, number = edge
    if before is None or number != 0:
        return None
    value = known(before)
    if value is None:
        recipe = _recipe(before, like, depth - 1)
        if recipe is None:
            return None
        value = Value(like, -1, recipe)  # on the way to another, and never compared with a tensor
        value.settled = True
    elif value.overwritten or value.dtype != like.dtype or value.geometry[0] != like.shape:
        return None
    return Source(value, None)


def _norm(node: Any, like: Tensor, other: Source | None, *, relu: bool) -> Normed | None:
    norm = _norm_of_fused(node) if type(node).__name__ == _FUSED else _norm_of_plain(node)
    if norm is None:
        return None
    x, weight, bias = norm.x, norm.weight, norm.bias
    is_ours = weight is None or type(weight) is Kept
    if x is None or x.value.overwritten or not is_ours or (bias is None) != (weight is None):
        return None
    if (x.geometry or x.value.geometry)[0] != like.shape or x.value.dtype != like.dtype:
        return None  # made larger, or of another type, by what it was added to
    recipe = Normed(norm.func, x, weight, bias, norm.eps, relu=relu or norm.relu)
    recipe.other = other
    if fuses(x.value.device.type):
        mean, invstd = (None if row is None else row.value.tensor for row in norm.rows)
        if mean is None or invstd is None:
            return None
        recipe.statistics = (mean, invstd)
    return recipe


class _NormNode(NamedTuple):
    """What the node of a batch norm in training knows."""

    func: Any
    x: Source | None
    weight: Any
    bias: Kept | None
    rows: tuple[Source | None, Source | None]  # mean and inverse deviation
    eps: float
    relu: bool


def _norm_of_plain(node: Any) -> _NormNode | None:
    if not node._saved_training:
        return None
    func, eps = _NORMS[type(node).__name__]
    # the bias is not saved; the node that takes its gradient knows it, but there is none if it is frozen
    bias = getattr(node.next_functions[2][0], "variable", None)
    rows = _saved(node._raw_saved_result1.data), _saved(node._raw_saved_result2.data)
    x, weight = _saved(node._raw_saved_input.data), node._raw_saved_weight.data
    shift = None if bias is None else _parameter(bias)
    return _NormNode(func, x, weight, shift, rows, getattr(node, eps), relu=False)


def _norm_of_fused(node: Any) -> _NormNode:
    x, weight, mean, invstd, bias = (each.data for each in node._raw_saved_tensors)
    rows = _saved(mean), _saved(invstd)
    func = _aten.native_batch_norm.default
    return _NormNode(func, _saved(x), weight, bias, rows, node.eps, relu=node.relu)


def _cast(node: Any, like: Tensor) -> CallRecipe | None:
    """Return how autocast made a copy of a weight in another precision."""
    weight = getattr(node.next_functions[0][0], "variable", None)
    if weight is None or weight.shape != like.shape or weight.device != like.device:
        return None
    return CallRecipe(_aten._to_copy.default, [Source(_parameter(weight), None)], {"dtype": like.dtype})


def _parameter(parameter: Tensor) -> Kept:
    return Kept(parameter, parameter._version, "")


def _saved(held: Any) -> Source | None:
    """Return what our own hook gave to autograd for a tensor."""
    if type(held) is Signal:
        held = held.held
    if type(held) is Kept:
        return Source(held, None)
    return Source(held.value, held.geometry) if type(held) is Slot else None
