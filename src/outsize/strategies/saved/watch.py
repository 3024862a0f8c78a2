"""Watches the operations of a forward and remembers how the cheap ones, and costly ones by name, made their results."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.measure.tensors import fills_storage, is_read_otherwise
from outsize.measure.tracing import BATCH_NORMS, differs_again
from outsize.measure.where import Where, is_parameter
from outsize.plan.memory import OF_IMAGES
from outsize.strategies.saved.draws import dropout_scale
from outsize.strategies.saved.lineage import is_fused_norm, known, read
from outsize.strategies.saved.recipes import CallRecipe, Source, convolution_settings, fuses
from outsize.strategies.saved.values import Kept, Value, geometry_of, leaves_of

# Operations that cost little beside a convolution, by torch's name without the "_" of their in-place form.
_ACTIVATIONS = """
    relu leaky_relu elu celu gelu silu mish hardswish hardsigmoid hardtanh clamp clamp_min clamp_max sigmoid tanh
    softplus _prelu_kernel _softmax _log_softmax
"""
_SUMS_AND_COPIES = "add sub mul div _to_copy clone cat stack roll masked_fill index"
_CHANGES_OF_SIZE = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d
    upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa constant_pad_nd
    reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d pixel_shuffle pixel_unshuffle
    avg_pool2d avg_pool3d _adaptive_avg_pool2d mean max_pool2d_with_indices max_pool3d_with_indices
"""
_NORMS = "_fused_rms_norm native_group_norm native_layer_norm native_batch_norm cudnn_batch_norm fused_norm"
_DROPOUT = "native_dropout"  # of a GPU; that of a CPU is a product
_CHEAP = frozenset(" ".join((_ACTIVATIONS, _SUMS_AND_COPIES, _CHANGES_OF_SIZE, _NORMS, _DROPOUT)).split())
_ATTENTION = tuple(f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn"))
_ATTENTION = (*_ATTENTION, "_scaled_dot_product_flash_attention_for_cpu")
# remembered only where a plan says so
_COSTLY = frozenset({"convolution", "addmm", "mm", "bmm", "baddbmm", *_ATTENTION})
_NUM_OUTPUTS = {"max_pool2d_with_indices": 2, "max_pool3d_with_indices": 2}  # of others the first alone


Site = tuple[str, int, Any]  # path of a module, its call, and an operation that ran in it


class _Rule(NamedTuple):
    """What the watch does about an operation."""

    name: str
    cheap: bool
    costly: bool
    writes: tuple[int, ...]  # positions of arguments that are changed in place
    in_place: bool


_RULES: dict[Any, _Rule | None] = {}
_NEW = _Rule("", cheap=False, costly=False, writes=(), in_place=False)


def _rule(func: Any) -> _Rule | None:
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    writes = tuple(
        place for place, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
    )
    in_place = writes == (0,) and name.endswith("_")
    base = name.removesuffix("_") if in_place else name
    cheap = base in _CHEAP and (in_place or not writes)
    costly = base in _COSTLY
    return _Rule(base, cheap, costly, writes, in_place) if cheap or costly or writes else None


class ForwardWatch(TorchDispatchMode):
    """Sees each operation of a forward and remembers recipes of the cheap ones.

    Below autograd: an operation comes here alone, with its casts done, and before its result is saved.
    Values that have a recipe live as long as the storage they are in. Tensors that recipes start from are held by
    the recipes alone, so that what nobody saves is freed as soon as what was made from it; and only where they take
    less than what is made. No plan recomputes a tensor from more, and a sum of many that nobody saves would hold all:

        skip = skip + a(x)    skip = skip + b(x)    skip = skip + c(x)    what a, b and c made, until forward ends

    `sites` names the only operations to remember: (module, call, operation). Others are let through, and what the
    graph knows of their results is taken from there. `costly` names the calls whose convolutions are remembered, too.
    """

    def __init__(
        self,
        where: Where | None = None,
        sites: frozenset[Site] | None = None,
        costly: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where, self._sites, self._costly = where, sites, costly
        self._funcs = None if sites is None else {func for _, _, func in sites}
        self._now: weakref.WeakKeyDictionary[Any, Value | weakref.ref[Value] | weakref.ref[Kept]] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled blocks run as they are: without this torch would quietly run them uncompiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = _RULES.get(func, _NEW)
        if rule is _NEW:
            rule = _RULES[func] = _rule(func)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        recipe = None
        if self._may_run_again(rule) and self._is_wanted(func) and torch.is_grad_enabled():
            recipe = self._recipe(func, rule, args, kwargs)
        result = func(*args, **kwargs)
        for place in rule.writes:
            if place < len(args) and isinstance(args[place], Tensor):
                self._now.pop(args[place].untyped_storage(), None)
        if recipe is not None:
            self._remember(func, recipe, rule, result)
        return result

    def _may_run_again(self, rule: _Rule) -> bool:
        if not rule.costly:
            return rule.cheap
        return bool(self._costly) and self._where is not None and self._where.here in self._costly

    def _is_wanted(self, func: Any) -> bool:
        if self._sites is None or self._funcs is None:
            return True
        return func in self._funcs and self._site(func) in self._sites

    def _site(self, func: Any) -> Site:
        return ("", 0, func) if self._where is None else (*self._where.here, func)

    def find(self, tensor: Tensor) -> Value | Kept | None:
        """Return what its storage holds now, if it was seen."""
        if is_read_otherwise(tensor):
            return None
        found = self._now.get(tensor.untyped_storage())
        value = found() if isinstance(found, weakref.ref) else found
        # the version tells of changes that did not come by here
        if value is None or value.version != tensor._version or value.dtype != tensor.dtype:
            return None
        return value

    def value_of(self, tensor: Tensor) -> Value | Kept:
        """Return what its storage holds now."""
        value: Value | Kept | None = self.find(tensor)
        if value is None and self._sites is not None:
            value = self._noted(tensor)
        if value is None and is_fused_norm(tensor):
            value = self._of_fused_norm(tensor)
        if value is None:
            value = Value(tensor, tensor._version)
            if not is_read_otherwise(tensor):
                self._now[tensor.untyped_storage()] = weakref.ref(value)
        return value

    def _of_fused_norm(self, tensor: Tensor) -> Value | None:
        """Return what our own node tells of a tensor: no operation came by that made it."""
        recipe = read(tensor)
        if recipe is None:
            return None
        value = Value(tensor, tensor._version, recipe)
        value.settled = True
        self._now[tensor.untyped_storage()] = value
        return value

    def _noted(self, tensor: Tensor) -> Value | Kept | None:
        """Return what was noted in the graph when the tensor was saved."""
        node = tensor.grad_fn
        value = known(node) if node is not None and tensor.output_nr == 0 else None
        if value is None or value.version != tensor._version or value.dtype != tensor.dtype:
            return None
        return value

    def keeps(self, tensor: Tensor, kept: Kept) -> None:
        """Know what is kept of a tensor as a view, for those who start from another view of its storage."""
        self._now[tensor.untyped_storage()] = weakref.ref(kept)

    def release(self, tensor: Tensor) -> None:
        """Leave the value to those who need it: it holds the storage, which would else never be freed."""
        storage = tensor.untyped_storage()
        found = self._now.get(storage)
        if isinstance(found, Value):
            self._now[storage] = weakref.ref(found)

    def forget(self) -> None:
        """Let go of all values: hooks of the graph hold the watch, and values may hold the graph."""
        self._now.clear()

    def _recipe(
        self, func: Any, rule: _Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRecipe | None:
        if rule.name not in OF_IMAGES and not _has_gradient(args):
            return None  # of a frozen encoder: to hold what it starts from would cost more than it may free
        may_differ = rule.costly or rule.name in BATCH_NORMS
        if may_differ and differs_again(func, args, kwargs, on_cuda=args[0].device.type != "cpu"):
            return None
        if rule.name in BATCH_NORMS:
            args = _without_statistics(args)
        sources = [self._sourced(each) for each in args]
        if rule.in_place and (sources[0].value.recipe is None or not fills_storage(args[0])):
            return None  # what it was made from is overwritten now, or a part of it
        named = {name: self._sourced(each) for name, each in kwargs.items()}
        recipe = CallRecipe(func, sources, named, in_place=rule.in_place)
        if rule.name == "convolution":
            recipe.settings = convolution_settings()
        return recipe

    def _sourced(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            value = self.value_of(argument)
            if type(value) is Value and _starts_from_gone(value):
                value.keep(argument)
                value.settled = False  # held by who is made from it, and by nobody else yet
            geometry = None if value.tensor is argument else geometry_of(argument)
            return Source(value, None if geometry == value.geometry else geometry)
        return [self._sourced(each) for each in argument] if isinstance(argument, list | tuple) else argument

    def _remember(self, func: Any, recipe: CallRecipe, rule: _Rule, result: Any) -> None:
        outputs: list[Tensor] = [result] if isinstance(result, Tensor) else list(result)
        if rule.name in BATCH_NORMS and recipe.args[5] and fuses(outputs[0].device.type):
            recipe.statistics = (outputs[1], outputs[2])
        if rule.name == _DROPOUT:
            recipe = self._dropout(recipe, outputs[1])
        recipe.site = self._site(func)
        num_outputs = _NUM_OUTPUTS.get(rule.name, 1)
        for index in range(num_outputs):
            output = outputs[index]
            if not fills_storage(output):
                continue  # a view of the one made again must find all that the first one had
            # autograd counts the change up when this returns
            version = output._version + rule.in_place
            value = Value(output, version, recipe, index)
            _hold_less_than(value)
            if num_outputs > 1:
                recipe.promise(index, value)
            self._now[output.untyped_storage()] = value

    def _dropout(self, recipe: CallRecipe, mask: Tensor) -> CallRecipe:
        """Take the mask of the first time instead of drawing another; backward multiplies as forward does."""
        source, share, train = recipe.args
        scale = dropout_scale(share, train)
        return CallRecipe(
            torch.ops.aten.native_dropout_backward.default, [source, self._sourced(mask), scale], {}
        )


def _hold_less_than(value: Value) -> None:
    """Hold what a value is made from, as far as nobody has saved it, only if that is less than the value.

    Weights are there anyway; a view of one, as a matrix turned round, is gone as soon as its operation has run.
    """
    leaves = [each for each in leaves_of(value, _is_saved)[0] if type(each) is Value and each is not value]
    weights = [each for each in leaves if _is_weight(each)]
    for each in weights:
        each.hold()
    leaves = [each for each in leaves if each not in weights]
    if sum(each.size_bytes for each in leaves) < value.size_bytes:
        for leaf in leaves:
            leaf.hold()
    else:
        for leaf in leaves:
            leaf.watch_only()


def _is_saved(value: Value | Kept) -> bool:
    return value.settled


def _starts_from_gone(value: Value) -> bool:
    """Whether what it is made from, or was watched itself through another view of its storage, is gone."""
    return not value.settled and any(
        type(each) is Value and _there(each) is None for each in leaves_of(value, _is_saved)[0]
    )


def _is_weight(value: Value) -> bool:
    tensor = _there(value)
    return tensor is not None and is_parameter(tensor)


def _there(value: Value) -> Tensor | None:
    return value.weak() if value.tensor is None and value.weak is not None else value.tensor


def _without_statistics(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Batch norm in training writes its running statistics and does not read them: a second time it shall not."""
    return (*args[:3], None, None, *args[5:]) if args[5] else args


def _has_gradient(args: Any) -> bool:
    return any(
        each.requires_grad
        if isinstance(each, Tensor)
        else isinstance(each, list | tuple) and _has_gradient(each)
        for each in args
    )
