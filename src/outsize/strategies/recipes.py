"""How cheap operations made a tensor, remembered without the tensor, and how to make it again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outsize.errors import ModelError, explain

Geometry = tuple[torch.Size, tuple[int, ...], int | torch.SymInt]  # size, stride, offset in the storage

# Where batch norm (with the sum and the ReLU behind it) is replayed by one fused function instead of the kernels of
# the first time. Those give the same bits again, which matters on a CPU; one pass over memory matters on a GPU.
FUSE = {"cpu": False, "cuda": True}
COMPILE = {"cpu": False, "cuda": True}  # the fused functions; where False they run as written

# A replayed tensor waits for its next use if that lies at most this many saved tensors away. A skip of a U-Net
# is used at both ends of backward: to hold it in between would give back the memory that recomputing freed.
_NEAR_PACKS = 16

_aten = torch.ops.aten


class Use(NamedTuple):
    """Where a tensor is wanted back: its place in the order of saving, and the module that saved it."""

    pack: int
    module: str


class Value:
    """What a storage holds from one operation that writes it to the next: a tensor, or a recipe for it.

    conv -> [value 1: tensor, kept] -> batch norm -> [value 2: recipe] -> relu_ -> [value 3: recipe]
                                                      `--- one storage, two versions ---'
    """

    def __init__(self, like: Tensor, version: int, recipe: Recipe | None = None, index: int = 0) -> None:
        self.geometry = geometry_of(like)
        self.dtype, self.device = like.dtype, like.device
        self.size_bytes = like.untyped_storage().nbytes()
        self.version = version
        self.recipe = recipe
        self.index = index  # which output of the recipe
        self.tensor: Tensor | None = None if recipe else like
        self.settled = False  # True: no tensor held here or below knows its gradient function (a cycle)
        self.num_pending = 0  # times it was saved and not asked for yet
        self.last_pack = -1
        self._cached: Tensor | None = None

    @property
    def depth(self) -> int:
        """How many operations in a row make it from tensors that are there."""
        return self.recipe.depth if self.recipe else 0

    def keep(self, tensor: Tensor) -> None:
        """Hold the tensor itself, or a view of it; how it was made is then of no interest."""
        tensor = without_history(tensor)
        same = geometry_of(tensor) == self.geometry
        self.tensor = tensor if same else tensor.as_strided(*self.geometry)
        self.recipe, self.settled = None, True

    def settle(self) -> bool:
        """Hold all that the recipe starts from; False where some of it was overwritten already."""
        found = list(_walk(self, stop=lambda value: value.settled and value.recipe is not None))
        leaves = [value for value in found if value.recipe is None]
        if any(leaf.overwritten for leaf in leaves):
            return False
        for leaf in leaves:
            assert leaf.tensor is not None
            leaf.tensor = without_history(leaf.tensor)
        for value in found:
            value.settled = True
        return True

    @property
    def overwritten(self) -> bool:
        """Whether an in-place operation changed the tensor that is held."""
        return self.tensor is not None and self.tensor._version != self.version

    def make(self, use: Use) -> tuple[Tensor, bool]:
        """Return the tensor, and whether nobody else holds it."""
        if self.tensor is not None:
            if self.overwritten:
                raise ModelError(_complaint(use.module, self.version, self.tensor._version))
            return self.tensor, False
        if self._cached is not None:
            return self._cached, False
        assert self.recipe is not None
        results = self.recipe.make(use)
        results[self.index] = self._laid_out(results[self.index])
        for index, result in results.items():
            output = self.recipe.output(index)
            if output is not None and output.tensor is None and output._waits(use):
                output._cached = result
        return results[self.index], self._cached is None

    def done(self) -> None:
        """Count one use; after the last nothing is held for another."""
        self.num_pending -= 1
        if self.num_pending == 0:
            self._cached = None

    @property
    def passing(self) -> bool:
        """Whether it is needed only on the way to another value, and would have to be made for that."""
        return self.tensor is None and self._cached is None and self.num_pending == 0

    def _laid_out(self, made: Tensor) -> Tensor:
        """Return it in the memory format of the first time: other kernels may choose another."""
        size, stride, _ = self.geometry
        return made if made.stride() == stride else made.new_empty_strided(size, stride).copy_(made)

    def _waits(self, use: Use) -> bool:
        return self.num_pending > 0 and use.pack - self.last_pack <= _NEAR_PACKS


class Source(NamedTuple):
    """A tensor argument of a recipe; `geometry` where it is another view of the storage than the value."""

    value: Value
    geometry: Geometry | None

    def make(self, use: Use) -> tuple[Tensor, bool]:
        """Return the tensor, and whether nobody else holds it."""
        tensor, private = self.value.make(use)
        return (tensor if self.geometry is None else tensor.as_strided(*self.geometry)), private


class Recipe:
    """One call of a cheap operation; tensors among its arguments are replaced by sources."""

    def __init__(self, func: Any, args: list[Any], kwargs: dict[str, Any], *, in_place: bool = False) -> None:
        self.func, self.args, self.kwargs, self.in_place = func, args, kwargs, in_place
        self.sources = list(_sources((*args, *kwargs.values())))
        self.depth = 1 + max((source.value.depth for source in self.sources), default=0)
        self.statistics: tuple[Tensor, Tensor] | None = None  # mean and inverse deviation, of a batch norm
        self._outputs: dict[int, weakref.ref[Value]] = {}

    def promise(self, index: int, value: Value) -> None:
        """Tell which value an output is."""
        self._outputs[index] = weakref.ref(value)

    def output(self, index: int) -> Value | None:
        """Return the value of an output if anybody still wants it."""
        found = self._outputs.get(index)
        return found() if found else None

    def make(self, use: Use) -> dict[int, Tensor]:
        """Run the operation again and return its outputs by number."""
        fused = _make_fused(self, use)
        if fused is not None:
            return {0: fused}
        args = list(self.args)
        if self.in_place:
            written, private = args[0].make(use)
            args[0] = written if private else written.clone()
        result = self.func(
            *(_filled(each, use) for each in args),
            **{name: _filled(each, use) for name, each in self.kwargs.items()},
        )
        return {0: result} if isinstance(result, Tensor) else {i: result[i] for i in self._outputs}


def geometry_of(tensor: Tensor) -> Geometry:
    """Return size, stride and offset."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def without_history(tensor: Tensor) -> Tensor:
    """Return the tensor with its version counter, but without its gradient function.

    Autograd's node holds what is saved for it: a tensor that holds the node would never be freed.
    """
    return tensor if tensor.is_leaf else tensor.detach()


def leaves_of(value: Value, stop: Callable[[Value], bool]) -> tuple[list[Value], int]:
    """Return the values a recipe starts from, and how many operations it has; nothing is asked of what stops it."""
    found = list(_walk(value, stop))
    leaves = [each for each in found if each.recipe is None]
    return leaves, len({id(each.recipe) for each in found if each.recipe is not None})


def _walk(value: Value, stop: Callable[[Value], bool]) -> Iterator[Value]:
    todo, seen = [value], {id(value)}
    while todo:
        each = todo.pop()
        if stop(each):
            continue
        yield each
        for source in each.recipe.sources if each.recipe else ():
            if id(source.value) not in seen:
                seen.add(id(source.value))
                todo.append(source.value)


def _sources(arguments: Any) -> Iterator[Source]:
    for each in arguments:
        if isinstance(each, Source):
            yield each
        elif isinstance(each, list):
            yield from _sources(each)


def _filled(argument: Any, use: Use) -> Any:
    if isinstance(argument, Source):
        return argument.make(use)[0]
    return [_filled(each, use) for each in argument] if isinstance(argument, list) else argument


def _complaint(module: str, saved: int, found: int) -> str:
    return explain(
        f"a tensor that backward of module '{module}' needs was changed in place after forward used it",
        f"version {found} of the tensor",
        f"version {saved}",
        "replace the in-place operation by its plain form, or train without recomputation",
    )


# ---- batch norm, the sum behind it and the ReLU behind that, as one pass over memory

_RELUS = {_aten.relu.default, _aten.relu_.default}
_SUMS = {_aten.add.Tensor, _aten.add_.Tensor}


def _make_fused(recipe: Recipe, use: Use) -> Tensor | None:
    norm, other, relu = _fusible(recipe)
    if norm is None or norm.statistics is None:
        return None
    x, weight, bias = (_filled(each, use) for each in norm.args[:3])
    shape = [1, -1] + [1] * (x.dim() - 2)
    rows = [None if each is None else each.view(shape) for each in (*norm.statistics, weight, bias)]
    compiled = COMPILE[x.device.type]
    if not relu:
        return _ready(_norm, compiled)(x, *rows)
    if other is None:
        return _ready(_norm_relu, compiled)(x, *rows)
    return _ready(_norm_add_relu, compiled)(x, *rows, other.make(use)[0])


def _fusible(recipe: Recipe) -> tuple[Recipe | None, Source | None, bool]:
    """Find the batch norm that this operation ends, what is added to it, and whether a ReLU follows."""
    if recipe.statistics is not None:
        return recipe, None, False
    if recipe.func not in _RELUS:
        return None, None, False
    before = _passing(recipe.sources[0])
    if before is None or before.statistics is not None:
        return before, None, True
    if before.func in _SUMS and len(before.sources) == 2 and not before.kwargs:
        for norm, other in (before.sources, before.sources[::-1]):
            found = _passing(norm)
            same = other.value.dtype == norm.value.dtype
            if found is not None and found.statistics is not None and same:
                return found, other, True
    return None, None, False


def _passing(source: Source) -> Recipe | None:
    return source.value.recipe if source.geometry is None and source.value.passing else None


@cache
def _ready(function: Callable[..., Tensor], compiled: bool) -> Callable[..., Tensor]:
    # three functions, not one with flags: the number of variants that one function may be compiled to is limited
    return torch.compile(function, dynamic=True) if compiled else function


def _affine(x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    out = (x.to(mean.dtype) - mean) * invstd  # float32 where x is bf16
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.to(x.dtype)


def _norm(x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _affine(x, mean, invstd, weight, bias)


def _norm_relu(x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _affine(x, mean, invstd, weight, bias).relu()


def _norm_add_relu(
    x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None, other: Tensor
) -> Tensor:
    return (_affine(x, mean, invstd, weight, bias) + other).relu()
