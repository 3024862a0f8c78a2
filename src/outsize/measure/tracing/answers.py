"""Runs a model on shapes alone to see what it answers with, and in which layouts of its input it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from outsize.errors import OutsizeError, TraceError
from outsize.measure.tensors import own_dtype
from outsize.measure.tracing.ghost import ghost_of
from outsize.measure.tracing.step import why_not_followed
from outsize.measure.tracing.trace import quiet


@dataclass(frozen=True)
class Part:
    """One leaf of what a model returns."""

    name: str  # how it is taken out: ['out'], [0]; "": it is all that is returned
    shape: tuple[int, ...]  # () where it is no tensor
    made_by: str  # its last operation, as autograd names it; "" where there is none
    along: int | None = None  # the axis that this operation goes along, where it does


def answer_on_shapes(
    model: nn.Module, shape: Sequence[int], *, channels_last: bool = True
) -> tuple[Part, ...]:
    """Run a model in evaluation mode on a batch of that shape; nothing is computed and no memory taken."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    ghost = model
    try:
        ghost = ghost_of(model, mode).eval()
        # compiled code would take the shapes for numbers, and crash
        with torch.compiler.set_stance("force_eager"), quiet(), mode:
            for parameter in ghost.parameters():  # or autograd would not note how the answer was made
                parameter.requires_grad_(parameter.is_floating_point())
            answer = ghost(torch.empty(tuple(shape), dtype=own_dtype(model), memory_format=layout))
    except OutsizeError as error:  # of the model: it says better what is wrong
        raise TraceError(str(error)) from error
    except Exception as error:  # a model may raise anything
        raise TraceError(why_not_followed(ghost, tuple(shape), error)) from error
    leaves, _ = tree_flatten_with_path(answer)
    return tuple(_part(keystr(path), leaf) for path, leaf in leaves)


def _part(name: str, leaf: object) -> Part:
    if not isinstance(leaf, Tensor):
        return Part(name, (), "")
    node = leaf.grad_fn
    if node is None:
        return Part(name, tuple(leaf.shape), "")
    along = getattr(node, "_saved_dim", None)  # an unsigned number, whatever the sign it was given with
    along = along - 2**64 + leaf.dim() if isinstance(along, int) and along >= 2**63 else along
    return Part(name, tuple(leaf.shape), node.name(), along)
