"""What a tensor between two stages looks like, known on both sides before it is sent: the graph is run on shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

if TYPE_CHECKING:
    from outsize.strategies.pipeline.cutting import Taken


@dataclass(frozen=True)
class SentLayout:
    """Shape, numbers and order in memory of a tensor that is sent, and whether its gradient comes back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]  # its axes as they lie in memory, the slowest first
    requires_grad: bool

    def packed(self, tensor: Tensor) -> Tensor:
        """Return a tensor as it is sent: contiguous, and where it lies so already, without a copy."""
        return tensor.detach().permute(self.order).contiguous()

    def empty(self, device: torch.device) -> Tensor:
        """Return memory for what will come."""
        return torch.empty([self.shape[axis] for axis in self.order], dtype=self.dtype, device=device)

    def unpacked(self, packed: Tensor) -> Tensor:
        """Return what came as it was."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return packed.permute(back)


def layout_of(tensor: Tensor) -> SentLayout:
    """Return the layout of a tensor."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
    return SentLayout(tuple(tensor.shape), tensor.dtype, tuple(order), tensor.requires_grad)


def layouts_of(
    traced: ExportedProgram,
    model: nn.Module,
    given: Mapping[fx.Node, Taken],
    inputs: Sequence[Any],
    *,
    bf16: bool,
) -> dict[str, SentLayout]:
    """Return the layout of every tensor of a graph; on each rank the same, whatever it holds of the model."""
    device = next((each.device for each in inputs if isinstance(each, Tensor)), torch.device("cpu"))
    found: dict[str, SentLayout] = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    class _Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            made = super().run_node(n)
            if isinstance(made, Tensor):
                found[n.name] = layout_of(made)
            return made

    def like(given: Tensor) -> Tensor:
        """Return a tensor on shapes; a given one may be of another trace on shapes."""
        made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
        return made.requires_grad_(given.requires_grad)

    def on_shapes(taken: Taken) -> Any:
        if taken.kind == "input":
            value = inputs[taken.what]
            return like(value) if isinstance(value, Tensor) else value
        if taken.kind == "constant":
            return mode.from_tensor(taken.what)
        known = model.get_parameter(taken.what) if taken.kind == "parameter" else model.get_buffer(taken.what)
        return torch.empty(known.shape, dtype=known.dtype, device=known.device).requires_grad_(
            known.requires_grad
        )

    narrow = torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()
    with mode, torch.enable_grad(), narrow:
        _Noting(traced.graph_module).run(*(on_shapes(each) for each in given.values()))
    return found
