"""How operations made a tensor, remembered without the tensor, and how to recompute it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outsize.strategies.kernels import fusing, normed
from outsize.strategies.saved.values import Geometry, Kept, SavedUse, Value

# Where batch norm (with the sum and the ReLU behind it) is replayed by one fused kernel instead of the kernels of
# the first time. Those give the same bits again, which matters on a CPU; one pass over memory matters on a GPU.
FUSE = {"cpu": False, "cuda": True}

_aten = torch.ops.aten


def fuses(kind: str) -> bool:
    """Whether batch norm is replayed by a fused kernel on a kind of device; builds one, the first time."""
    return FUSE.get(kind, False) and fusing(kind)


Settings = tuple[
    bool, bool, bool, str
]  # of convolutions on a GPU: enabled, benchmark, deterministic, precision


def convolution_settings() -> Settings:
    """Return by which settings cuDNN chooses the kernel of a convolution now."""
    cudnn: Any = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision


def _as_set(settings: Settings | None) -> AbstractContextManager[None]:
    """Run a convolution by the settings of the first time, where they were changed since."""
    now = None if settings is None else convolution_settings()
    return nullcontext() if settings is None or now is None or now == settings else _changed(now, settings)


@contextmanager
def _changed(now: Settings, settings: Settings) -> Iterator[None]:
    _set(now, settings)
    try:
        yield
    finally:
        _set(settings, now)


def _set(before: Settings, after: Settings) -> None:
    cudnn: Any = torch.backends.cudnn
    places = (
        (cudnn, "enabled"),
        (cudnn, "benchmark"),
        (cudnn, "deterministic"),
        (cudnn.conv, "fp32_precision"),
    )
    for (owner, name), was, value in zip(places, before, after, strict=True):
        if (
            was != value
        ):  # others are left alone: torch complains where its old and new names for TF32 are mixed
            setattr(owner, name, value)


class Source(NamedTuple):
    """A tensor argument of a recipe; `geometry` where it is another view of the storage than the value."""

    value: Value | Kept
    geometry: Geometry | None

    def make(self, use: SavedUse) -> tuple[Tensor, bool]:
        """Return the tensor, and whether nobody else holds it."""
        tensor, private = self.value.make(use)
        return (tensor if self.geometry is None else tensor.as_strided(*self.geometry)), private


class CallRecipe:
    """One call of an operation; tensors among its arguments are replaced by sources."""

    __slots__ = (
        "_outputs", "args", "depth", "func", "in_place", "kwargs", "settings", "site", "sources", "statistics",
    )  # fmt: skip

    def __init__(self, func: Any, args: list[Any], kwargs: dict[str, Any], *, in_place: bool = False) -> None:
        self.func, self.args, self.kwargs, self.in_place = func, args, kwargs, in_place
        self.sources: list[Source] = []
        _gather(args, self.sources)
        if kwargs:
            _gather(kwargs.values(), self.sources)
        self.depth = 1 + max((source.value.depth for source in self.sources), default=0)
        self.statistics: tuple[Tensor, Tensor] | None = None  # mean and inverse deviation, of a batch norm
        self.settings: Settings | None = None  # of a convolution
        self.site: Any = None  # in which call of which module it ran
        self._outputs: dict[int, weakref.ref[Value]] | None = None  # where there are several

    def promise(self, index: int, value: Value) -> None:
        """Tell which value an output is, of an operation of which several are wanted."""
        if self._outputs is None:
            self._outputs = {}
        self._outputs[index] = weakref.ref(value)

    def make(self, use: SavedUse) -> Tensor | dict[int, Tensor]:
        """Run the operation again and return its output, or outputs by number where several are promised."""
        made = _make_fused(self, use)
        if made is not None:
            return made
        args = list(self.args)
        if self.in_place:
            written, private = args[0].make(use)
            args[0] = written if private else written.clone()
        filled = [_filled(each, use) for each in args]
        named = {name: _filled(each, use) for name, each in self.kwargs.items()}
        with _as_set(self.settings):
            result = self.func(*filled, **named)
        if self._outputs is not None:
            return {index: result[index] for index in self._outputs}
        return result if isinstance(result, Tensor) else result[0]

    def hand_out(self, made: dict[int, Tensor], use: SavedUse) -> None:
        """Give other outputs to those who wait for them."""
        for index, tensor in made.items():
            value = self._outputs[index]() if self._outputs else None
            if value is not None:
                value.take(tensor, use)


class Normed:
    """Batch norm in training, the sum behind it and the ReLU behind that, as one recipe: what the graph tells of."""

    __slots__ = ("bias", "eps", "func", "other", "relu", "statistics", "weight", "x")

    site = None  # nobody watches for it

    def __init__(
        self,
        func: Any,
        x: Source,
        weight: Kept | None,
        bias: Kept | None,
        eps: float,
        *,
        relu: bool,
    ) -> None:
        self.func, self.x, self.weight, self.bias, self.eps, self.relu = func, x, weight, bias, eps, relu
        self.other: Source | None = None
        self.statistics: tuple[Tensor, Tensor] | None = None  # None: to be found again, by the same kernel

    @property
    def sources(self) -> list[Source]:
        """All tensors that it starts from."""
        rows = [Source(each, None) for each in (self.weight, self.bias) if each is not None]
        return [self.x, *rows, *([] if self.other is None else [self.other])]

    @property
    def depth(self) -> int:
        """How many recipes in a row it takes."""
        return 1 + max(source.value.depth for source in self.sources)

    def make(self, use: SavedUse) -> Tensor:
        """Run the operations again: fused, or the very ones of the first time but for the running statistics."""
        x = self.x.make(use)[0]
        weight = None if self.weight is None else self.weight.make(use)[0]
        bias = None if self.bias is None else self.bias.make(use)[0]
        other = None if self.other is None else self.other.make(use)[0]
        if self.statistics is not None:
            return normed(x, (*self.statistics, weight, bias), other, relu=self.relu)
        made: Tensor = self.func(x, weight, bias, None, None, True, 0.0, self.eps)[0]
        made = made if other is None else made.add_(other)
        return made.relu_() if self.relu else made

    def hand_out(self, made: dict[int, Tensor], use: SavedUse) -> None:
        """Give other outputs to those who wait for them: there are none."""


def _gather(arguments: Any, sources: list[Source]) -> None:
    for each in arguments:
        kind = type(each)
        if kind is Source:
            sources.append(each)
        elif kind is list:
            _gather(each, sources)


def _filled(argument: Any, use: SavedUse) -> Any:
    kind = type(argument)
    if kind is Source:
        return argument.make(use)[0]
    return [_filled(each, use) for each in argument] if kind is list else argument


# ---- batch norm, the sum behind it and the ReLU behind that, as one pass over memory

_RELUS = {_aten.relu.default, _aten.relu_.default}
_SUMS = {_aten.add.Tensor, _aten.add_.Tensor}


def _make_fused(recipe: CallRecipe, use: SavedUse) -> Tensor | None:
    norm, other, relu = _fusible(recipe)
    if norm is None or norm.statistics is None:
        return None
    x, weight, bias = (_filled(each, use) for each in norm.args[:3])
    added = None if other is None else other.make(use)[0]
    return normed(x, (*norm.statistics, weight, bias), added, relu=relu)


def _fusible(recipe: CallRecipe) -> tuple[CallRecipe | None, Source | None, bool]:
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
            alike = other.value.dtype == norm.value.dtype and _size(other) == _size(norm)
            if found is not None and found.statistics is not None and alike:
                return found, other, True
    return None, None, False


def _size(source: Source) -> torch.Size:
    return (source.geometry or source.value.geometry)[0]


def _passing(source: Source) -> CallRecipe | None:
    recipe = source.value.recipe if source.geometry is None and source.value.passing else None
    return recipe if type(recipe) is CallRecipe else None
