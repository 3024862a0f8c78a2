"""Concatenations and enlargements that are not made before the convolution that reads them, and then by slices.

    x1 -- enlarge --.                              the whole is the largest tensor of a decoder, its gradient another;
    x2 --------------+-- cat --> whole --> conv    enlarged tensors in float32 under autocast come on top
    x3 -- enlarge --'

Inside of a module that is named, what `cat` and `interpolate` return is only described. The convolution that reads it,
or the cross-entropy of logits that are enlarged last, makes it for some samples at a time, forward and once more in
backward; kept are x1, x2 and x3. Whoever else asks for its numbers gets them: then it is made as a whole, as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from outsize.errors import PlanError, explain
from outsize.strategies.find import find_module
from outsize.strategies.kernels.sliced import in_slices
from outsize.strategies.replaced import run_instead

_MOST_BYTES = 2**27  # of what is described, that is made at once
_FLOAT32 = ("nearest", "bilinear", "bicubic", "nearest-exact")  # which autocast on a GPU enlarges in float32
_SEEN = {  # what is known without the numbers
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")
    ),
    *(getattr(Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "is_complex")),
    Tensor.layout.__get__,  # type: ignore[attr-defined]
}


class PendingPart(NamedTuple):
    """A tensor, as it is or enlarged."""

    x: Tensor
    how: tuple[tuple[str, Any], ...] | None  # arguments of `interpolate`
    casts: tuple[str, torch.dtype, bool]  # by which autocast it would have been made

    def make(self, x: Tensor) -> Tensor:
        """Return the part of some samples."""
        if self.how is None:
            return x
        kind, dtype, enabled = self.casts
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            return F.interpolate(x, **dict(self.how))

    @classmethod
    def of(cls, x: Tensor, how: dict[str, Any] | None = None) -> PendingPart:
        """Return what is made of a tensor by the autocast of now."""
        kind = x.device.type
        casts = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        return cls(x, None if how is None else tuple(how.items()), casts)


class Pending(Tensor):
    """Parts side by side, described and not made."""

    parts: tuple[PendingPart, ...]
    cast: torch.dtype | None  # what all of it is cast to in the end
    made: Tensor | None

    @staticmethod
    def of(
        parts: tuple[PendingPart, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        cast_to: torch.dtype | None = None,
    ) -> Pending:
        """Describe what is made of parts."""
        wants = any(each.x.requires_grad for each in parts)
        found: Any = Tensor._make_wrapper_subclass(
            Pending, shape, dtype=dtype, device=parts[0].x.device, requires_grad=wants
        )
        found.parts, found.cast, found.made = parts, cast_to, None
        if wants:
            with torch._C.DisableTorchFunctionSubclass():
                found.register_hook(_refuse_gradient)
        return cast(Pending, found)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SEEN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        by_slices = _BY_SLICES.get(func)
        if by_slices is not None and torch.is_grad_enabled() and args and type(args[0]) is Pending:
            found = by_slices(args[0], *args[1:], **kwargs) if args[0].made is None else None
            if found is not None:
                return found
        return func(*_made(args), **{name: _made(each) for name, each in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_made(args), **{name: _made(each) for name, each in (kwargs or {}).items()})

    def whole(self) -> Tensor:
        """Return it as it would have been made; with gradients but once."""
        if self.made is not None:
            return self.made
        made = self.of_some(self.parts, [each.x for each in self.parts], self.cast)
        self.made = made if torch.is_grad_enabled() else None
        return made

    @staticmethod
    def of_some(parts: tuple[PendingPart, ...], given: list[Tensor], dtype: torch.dtype | None) -> Tensor:
        """Return parts of some samples side by side."""
        made = [part.make(x) for part, x in zip(parts, given, strict=True)]
        found = made[0] if len(made) == 1 else torch.cat(made, dim=1)
        return found if dtype is None else found.to(dtype)


def _refuse_gradient(_: Tensor) -> None:
    """Refuse what would be lost: torch hands a tensor to an `autograd.Function` of others without a word to it."""
    problem = "what is joined or enlarged by slices is read by an autograd.Function of its own"
    found, needed = (
        "a gradient for what was only described",
        "a convolution or cross-entropy of torch behind it",
    )
    raise PlanError(explain(problem, found, needed, "raise the budget until nothing is made by slices"))


def _made(value: Any) -> Any:
    if type(value) is Pending:
        return value.whole()
    if type(value) in (list, tuple):
        return type(value)(map(_made, value))
    return value


def _convolved(
    pending: Pending,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return the convolution, for some samples at a time."""
    if type(weight) is Pending:
        return None

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    return _in_slices(pending, convolve, [], [weight, bias])


def _cast(pending: Pending, *args: Any, **kwargs: Any) -> Pending | None:
    """Return it in another type, by default in float32."""
    dtype = args[0] if args else torch.float32
    if kwargs or len(args) > 1 or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return None
    return Pending.of(pending.parts, tuple(pending.shape), dtype, cast_to=dtype)


def _entropy(
    pending: Pending,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: object = None,
    ignore_index: int = -100,
    reduce: object = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """Return the cross-entropy with classes of pixels, added up sample by sample."""
    of_pixels = target.shape == (pending.shape[0], *pending.shape[2:]) and target.dtype is torch.long
    as_today = size_average is None and reduce is None and reduction in ("mean", "sum")
    if not of_pixels or not as_today or label_smoothing:
        return None

    def entropy(x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        found = F.cross_entropy(x, target, weight, ignore_index=ignore_index, reduction="none")
        return found.flatten(1).sum(1)

    total = _in_slices(pending, entropy, [target], [weight]).sum()
    if reduction == "sum":
        return total
    is_labelled = target != ignore_index
    if weight is None:
        return total / is_labelled.sum()
    return total / (weight[target.masked_fill(~is_labelled, 0)] * is_labelled).sum()


def _in_slices(
    pending: Pending, use: Callable[..., Tensor], beside: list[Tensor], shared: list[Tensor | None]
) -> Tensor:
    """Return what is made of it for some samples at a time; `beside` has the same samples."""
    # the parts themselves are autograd's to keep
    parts = tuple(each._replace(x=cast(Tensor, None)) for each in pending.parts)
    dtype = pending.cast

    def run(*given: Any) -> Tensor:
        return use(Pending.of_some(parts, list(given[: len(parts)]), dtype), *given[len(parts) :])

    sample_bytes = math.prod(pending.shape[1:]) * pending.dtype.itemsize
    at_once = min(max(1, _MOST_BYTES // max(1, sample_bytes)), pending.shape[0])
    return in_slices(run, [*(each.x for each in pending.parts), *beside], shared, at_once)


# what of torch's reads it by slices
_BY_SLICES: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv2d: _convolved,
    F.cross_entropy: _entropy,
    Tensor.float: _cast,
    Tensor.to: _cast,
}


class Postponing(TorchFunctionMode):
    """Describes what `cat` and `interpolate` would make, where a step of training wants gradients."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            found = None
            if func is F.interpolate:
                found = _enlarged(*args, **kwargs)
            elif func is torch.cat:
                found = _joined(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _is_picture(x: object) -> bool:
    """Whether it is of samples, channels, rows and columns of numbers with gradients."""
    return isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point() and x.layout is torch.strided


def _enlarged(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Pending | None:
    if not _is_picture(input) or type(input) is Pending or mode not in _FLOAT32 or not input.requires_grad:
        return None
    if recompute_scale_factor or antialias or (size is None) == (scale_factor is None):
        return None
    sides = tuple(input.shape[2:])
    if size is not None:
        made = tuple(map(int, size)) if isinstance(size, tuple | list | torch.Size) else (int(size),) * 2
    else:
        scales = scale_factor if isinstance(scale_factor, tuple | list) else (scale_factor,) * 2
        made = tuple(math.floor(side * float(scale)) for side, scale in zip(sides, scales, strict=True))
    if math.prod(made) <= math.prod(sides):
        return None
    how = {"size": size, "scale_factor": scale_factor, "mode": mode, "align_corners": align_corners}
    dtype = torch.float32 if torch.is_autocast_enabled(input.device.type) else input.dtype
    return Pending.of((PendingPart.of(input, how),), (*input.shape[:2], *made), dtype)


def _joined(tensors: Any, dim: int = 0, *, axis: int | None = None, out: object = None) -> Pending | None:
    dim = dim if axis is None else axis
    if out is not None or dim not in (1, -3) or len(tensors) < 2 or not all(map(_is_picture, tensors)):
        return None
    sizes = {(each.shape[0], *each.shape[2:]) for each in tensors}
    if len(sizes) != 1 or not any(each.requires_grad for each in tensors):
        return None
    parts: list[PendingPart] = []
    for each in tensors:
        pending = type(each) is Pending and each.made is None and each.cast is None
        parts += each.parts if pending else [PendingPart.of(_made(each))]
    dtype = tensors[0].dtype
    for each in tensors[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    first = tensors[0].shape
    return Pending.of(tuple(parts), (first[0], sum(each.shape[1] for each in tensors), *first[2:]), dtype)


@contextmanager
def made_later(model: nn.Module, paths: Collection[str]) -> Iterator[None]:
    """Inside the block what the named modules join and enlarge is made by the convolutions that read it."""
    with ExitStack() as undo:
        for path in paths:
            undo.enter_context(run_instead(find_module(model, path, purpose="run by slices"), run_later))
        yield


def run_later(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the forward of a module so that what it joins and enlarges is made later."""
    with Postponing():
        return type(module).forward(module, *args, **kwargs)
