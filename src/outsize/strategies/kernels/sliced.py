"""Runs a function for some samples at a time, forward and once more in backward; kept is only what goes into it.

    pictures  |s0|s1|s2|s3|  --run-->  |s0|s1|s2|s3|   forward: what is made on the way is gone after each slice
                                                       backward: each slice runs again, then its gradient goes back

The function sees each sample by itself, so slices put together are the whole. What all slices share (weights) has the
sum of their gradients, in the weights' own precision, where autocast casts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from outsize.measure.tensors import without_history

Run = Callable[..., Tensor]  # pictures of some samples, then what they share -> the result for these samples


def in_slices(
    run: Run, pictures: Sequence[Tensor], shared: Sequence[Tensor | None], samples_at_once: int
) -> Tensor:
    """Return what `run` makes of pictures, in which samples come first."""
    made: Any = _Sliced.apply(run, samples_at_once, len(pictures), *pictures, *shared)  # type: ignore[no-untyped-call, unused-ignore]
    return cast(Tensor, made)


class _Sliced(torch.autograd.Function):
    """Keeps pictures and what they share."""

    @staticmethod
    def forward(ctx: Any, run: Run, at_once: int, num_pictures: int, *given: Tensor | None) -> Tensor:
        pictures, shared = given[:num_pictures], given[num_pictures:]
        first = pictures[0]
        assert first is not None
        kind = first.device.type
        ctx.casts = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.run, ctx.at_once, ctx.num_pictures = run, at_once, num_pictures
        ctx.save_for_backward(*given)
        made: Tensor | None = None
        with _casting(ctx.casts):
            for some in _slices(len(first), at_once):
                part = run(*(None if each is None else each[some] for each in pictures), *shared)
                if at_once >= len(first):
                    return part
                made = _room_for(part, len(first)) if made is None else made
                made[some].copy_(part)
                del part  # before the next takes as much
        assert made is not None
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # once: each time they may be made or fetched again
        given: tuple[Tensor | None, ...] = ctx.saved_tensors
        wanted = [place for place, needs in enumerate(ctx.needs_input_grad[3:]) if needs]
        found: list[Tensor | None] = [None] * len(given)
        for some in _slices(len(grad), ctx.at_once):
            for place, one in zip(wanted, _back(ctx, given, wanted, some, grad[some]), strict=True):
                before = found[place]
                if one is None:
                    continue
                if place >= ctx.num_pictures or ctx.at_once >= len(grad):
                    found[place] = one if before is None else before + one
                    continue
                if before is None:
                    before = found[place] = torch.zeros_like(_there(given[place]))
                before[some].copy_(one)
        return None, None, None, *found


def _back(
    ctx: Any, given: tuple[Tensor | None, ...], wanted: list[int], some: slice, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Run a slice again, and return the gradients of what wants them."""
    leaves = [_leaf(each, some if place < ctx.num_pictures else None) for place, each in enumerate(given)]
    asked = [_there(leaves[place]).requires_grad_() for place in wanted]
    # what runs again is nobody's to keep, move or make again: it is used at once
    hooks = torch.autograd.graph.saved_tensors_hooks(without_history, lambda tensor: tensor)
    with torch.enable_grad(), _casting(ctx.casts), hooks:
        part = ctx.run(*leaves)
    return torch.autograd.grad(part, asked, grad, allow_unused=True)


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _slices(num_samples: int, at_once: int) -> list[slice]:
    return [slice(start, start + at_once) for start in range(0, num_samples, at_once)]


def _casting(casts: tuple[str, torch.dtype, bool]) -> AbstractContextManager[object]:
    """Cast as at the first time, and keep no copies of weights: those made without gradients would serve others."""
    kind, dtype, enabled = casts
    return torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False)


def _leaf(tensor: Tensor | None, some: slice | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.detach() if some is None else tensor[some].detach()


def _room_for(part: Tensor, num_samples: int) -> Tensor:
    """Return memory for all samples that lies as that of some does."""
    layout = torch.contiguous_format
    if part.dim() == 4 and part.is_contiguous(memory_format=torch.channels_last):
        layout = torch.channels_last
    shape = (num_samples, *part.shape[1:])
    return torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=layout)
