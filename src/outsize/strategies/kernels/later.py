"""Concatenations and enlargements that are not made before the convolution that reads them, and then by slices.

    x1 -- enlarge --.                              the whole is the largest tensor of a decoder, its gradient another;
    x2 --------------+-- cat --> whole --> conv    enlarged tensors in float32 under autocast come on top
    x3 -- enlarge --'

Inside of a module that is named, what `cat` and `interpolate` return is only described. The convolution that reads it
makes it for some samples at a time, forward and again in backward; kept are x1, x2 and x3. Whoever else asks for its
numbers gets them: then it is made as a whole, as ever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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

    def make(self, x: Tensor) -> Tensor:
        """Return the part of some samples."""
        return x if self.how is None else F.interpolate(x, **dict(self.how))


class Pending(Tensor):
    """Parts side by side, described and not made."""

    parts: tuple[PendingPart, ...]
    made: Tensor | None

    @staticmethod
    def of(parts: tuple[PendingPart, ...], shape: tuple[int, ...], dtype: torch.dtype) -> Pending:
        """Describe what is made of parts."""
        wants = any(each.x.requires_grad for each in parts)
        found: Any = Tensor._make_wrapper_subclass(
            Pending, shape, dtype=dtype, device=parts[0].x.device, requires_grad=wants
        )
        found.parts, found.made = parts, None
        return cast(Pending, found)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SEEN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.conv2d and type(args[0]) is Pending and args[0].made is None:
            found = _convolved(args[0], *args[1:], **kwargs)
            if found is not None:
                return found
        return func(*_made(args), **{name: _made(each) for name, each in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_made(args), **{name: _made(each) for name, each in (kwargs or {}).items()})

    def whole(self) -> Tensor:
        """Return it as it would have been made, once."""
        if self.made is None:
            self.made = _side_by_side(self.parts, [each.x for each in self.parts])
        return self.made


def _made(value: Any) -> Any:
    if type(value) is Pending:
        return value.whole()
    if type(value) in (list, tuple):
        return type(value)(map(_made, value))
    return value


def _side_by_side(parts: tuple[PendingPart, ...], given: list[Tensor]) -> Tensor:
    made = [part.make(x) for part, x in zip(parts, given, strict=True)]
    return made[0] if len(made) == 1 else torch.cat(made, dim=1)


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
    if not torch.is_grad_enabled() or type(weight) is Pending:
        return None
    parts, num_samples = pending.parts, pending.shape[0]
    sample_bytes = math.prod(pending.shape[1:]) * pending.dtype.itemsize
    at_once = max(1, _MOST_BYTES // max(1, sample_bytes))

    def run(*given: Any) -> Tensor:
        *pictures, weight, bias = given
        return torch.conv2d(_side_by_side(parts, pictures), weight, bias, stride, padding, dilation, groups)

    # the parts themselves are autograd's to keep
    hows = tuple(PendingPart(cast(Tensor, None), each.how) for each in parts)
    pictures, parts = [each.x for each in parts], hows
    return in_slices(run, pictures, [weight, bias], min(at_once, num_samples))


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
    return Pending.of((PendingPart(input, tuple(how.items())),), (*input.shape[:2], *made), dtype)


def _joined(tensors: Any, dim: int = 0, *, axis: int | None = None, out: object = None) -> Pending | None:
    dim = dim if axis is None else axis
    if out is not None or dim not in (1, -3) or len(tensors) < 2 or not all(map(_is_picture, tensors)):
        return None
    sizes = {(each.shape[0], *each.shape[2:]) for each in tensors}
    if len(sizes) != 1 or not any(each.requires_grad for each in tensors):
        return None
    parts: list[PendingPart] = []
    for each in tensors:
        pending = type(each) is Pending and each.made is None
        parts += each.parts if pending else [PendingPart(_made(each), None)]
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
