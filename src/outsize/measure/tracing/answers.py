"""Runs a model on shapes alone to see what it answers with, and in which layouts of its input it runs at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from outsize.errors import OutsizeError, TraceError
from outsize.graph import kinds
from outsize.measure.graphs import quiet
from outsize.measure.state import reach_as_it_was
from outsize.measure.tensors import own_dtype, tensors_in
from outsize.measure.tracing.ghost import ghost_of
from outsize.measure.tracing.step import why_not_followed


@dataclass(frozen=True)
class AnswerLeaf:
    """One leaf of what a model returns."""

    name: str  # how it is taken out: ['out'], [0]; "": it is all that is returned
    shape: tuple[int, ...]  # () where it is no tensor
    made_by: str  # its last operation, as torch names it, copies left aside; "" where there is none
    along: int | None = None  # the axis that this operation goes along, where it does
    kind: str = ""  # of numbers, as torch names it, or of what is no tensor


def answer_on_shapes(
    model: nn.Module, shape: Sequence[int], *, channels_last: bool = True
) -> tuple[AnswerLeaf, ...]:
    """Run a model in evaluation mode on a batch of that shape; nothing is computed and no memory taken."""
    mode, makers = FakeTensorMode(allow_non_fake_inputs=True), _Makers()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    ghost = model
    try:
        ghost = ghost_of(model, mode).eval()
        # compiled code would take the shapes for numbers, and crash
        with reach_as_it_was(model, warns=False), torch.compiler.set_stance("force_eager"), quiet(), mode:
            inputs = torch.empty(tuple(shape), dtype=own_dtype(model), memory_format=layout)
            with makers:
                answer = ghost(inputs)
    except OutsizeError as error:  # of the model: it says better what is wrong
        raise TraceError(str(error)) from error
    except Exception as error:  # a model may raise anything
        raise TraceError(why_not_followed(ghost, tuple(shape), error)) from error
    leaves, _ = tree_flatten_with_path(answer)
    return tuple(_part(keystr(path), leaf, makers) for path, leaf in leaves)


_COPIES = kinds("alias clone contiguous detach to type_as _to_copy copy_ lift_fresh")


class _Makers(TorchDispatchMode):
    """Notes by which operation each tensor was made, whether or not gradients are wanted there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[Tensor, str, int | None]] = {}  # an id is good while its tensor lives

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        made = self.of(tensors_in(args)[-1]) if name in _COPIES and tensors_in(args) else None
        if made is None:
            name = name.strip("_")
            made = name, args[1] % args[0].dim() if name == "softmax" else None
        for each in tensors_in(result):
            self._made[id(each)] = (each, *made)
        return result

    def of(self, tensor: Tensor) -> tuple[str, int | None]:
        """Return the operation that made a tensor, and the axis it goes along."""
        _, name, along = self._made.get(id(tensor), (tensor, "", None))
        return name, along


def _part(name: str, leaf: object, makers: _Makers) -> AnswerLeaf:
    if not isinstance(leaf, Tensor):
        return AnswerLeaf(name, (), "", kind=type(leaf).__name__)
    made = makers.of(leaf)
    return AnswerLeaf(name, tuple(leaf.shape), *made, kind=str(leaf.dtype).removeprefix("torch."))
