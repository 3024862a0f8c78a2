"""Tensors: those in arguments of any kind, their shapes in words, and as what one may be saved."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from outsize.errors import listed

Shapes = tuple[tuple[int, ...], ...]
"""Of all tensors that one call of a model is given."""


def tensors_in(values: Any) -> list[Tensor]:
    """List all tensors in tuples, lists and dicts of anything."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def own_dtype(model: nn.Module) -> torch.dtype:
    """Return the type that a model computes in: that of its first weight, or else buffer, that is no whole number."""
    own = chain(model.parameters(), model.buffers())
    return next((each.dtype for each in own if each.is_floating_point()), torch.float32)


def own_device(model: nn.Module) -> torch.device:
    """Return where a model is: where its first weight is."""
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def stored_in(values: Any) -> list[Tensor]:
    """List the tensors that have memory in tuples, lists and dicts of anything: of a sparse one its parts."""
    return [part for each in tensors_in(values) for part in _parts_of(each)]


def _parts_of(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    names = ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values")
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    wanted = names[:2] if by_rows else names[2:4]
    return [getattr(tensor, name)() for name in (*wanted, "values")]


def without_history(tensor: Tensor) -> Tensor:
    """Return the tensor with its version counter, but without its gradient function.

    Autograd's node holds what is saved for it: a tensor that holds the node would never be freed.
    """
    return tensor if tensor.is_leaf else tensor.detach()


def is_read_otherwise(tensor: Tensor) -> bool:
    """Whether its numbers are not those in its storage: a view that conjugates or negates them when they are read."""
    return tensor.is_conj() or tensor.is_neg()


def fills_storage(tensor: Tensor) -> bool:
    """Whether it has all of the memory it lies in, and is no part of another."""
    return bool(tensor.nbytes == tensor.untyped_storage().nbytes())


def shapes_of(values: Any) -> Shapes:
    """List the shapes of all tensors in arguments of any kind."""
    return tuple(tuple(each.shape) for each in tensors_in(values))


def num_values(shapes: Shapes) -> int:
    """Count the numbers that tensors of these shapes hold together."""
    return sum(map(math.prod, shapes))


def format_shapes(shapes: Shapes) -> str:
    """Write shapes: "8x3x96x96" of one tensor, "8x3x96x96, 8" of two."""
    return listed(["x".join(map(str, shape)) or "one number" for shape in shapes])
