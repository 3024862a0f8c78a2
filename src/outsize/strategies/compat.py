"""What torch keeps to itself and a strategy cannot do without, in one file: each with a link and a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

Backend = str | Callable[..., Any]

# Hooks of all modules there are: https://docs.pytorch.org/docs/stable/generated/
# torch.nn.modules.module.register_module_forward_hook.html says how to add one, nothing says how to leave them out.
_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is a shape alone.

    https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_fake_tensor.html
    """
    return isinstance(tensor, FakeTensor)


def seen_as(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the same memory in another shape, which autograd does not take for a view: it may be changed in place.

    https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/TensorShape.cpp (_unsafe_view)
    """
    seen: Tensor = torch.ops.aten._unsafe_view(tensor, list(shape))
    return seen


def made_by(function: type[torch.autograd.Function], tensor: Tensor) -> Any | None:
    """Return the context of the autograd function that made a tensor; None where another did, or none.

    https://github.com/pytorch/pytorch/blob/main/torch/autograd/function.py (_forward_cls, in FunctionMeta)
    """
    node = tensor.grad_fn
    return node if getattr(node, "_forward_cls", None) is function else None


@contextmanager
def no_global_hooks() -> Iterator[None]:
    """Inside the block no module calls the hooks that were set for all modules.

    torch.compile would take them into the code of a block, and compile again whenever one of them is another.
    """
    tables: list[dict[int, Any]] = [getattr(torch_module, name) for name in _HOOKS]
    held = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, held, strict=True):
            table.update(hooks)


def with_activation_budget(backend: Backend, share: float) -> Backend:
    """Return the backend that keeps at most this share of what it would keep for backward, and makes the rest again.

    1 is what it does by itself, 0 keeps the inputs of a block alone; set while it compiles, and for nobody else.
    https://pytorch.org/blog/activation-checkpointing-techniques/ (memory budget API)
    """
    from torch._dynamo.backends.registry import lookup_backend
    from torch._functorch import config

    compile_graph = lookup_backend(backend)

    def compile_within(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        with config.patch(activation_memory_budget=share):
            return compile_graph(graph, examples)

    return compile_within


def compile_errors() -> tuple[type[Exception], ...]:
    """Return what torch.compile raises where it fails itself, and not the module that it runs.

    https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_troubleshooting.html
    """
    from torch._dynamo.exc import TorchDynamoException

    return (TorchDynamoException,)


def ask_pool(index: int, pool: tuple[int, int]) -> None:
    """Let all that this thread takes on a device come from a pool, until `ask_no_pool`.

    https://github.com/pytorch/pytorch/blob/main/torch/cuda/memory.py (use_mem_pool)
    """
    torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)


def ask_no_pool(index: int, pool: tuple[int, int]) -> None:
    """End what `ask_pool` began, or what a recording of a CUDA graph did with its own pool."""
    torch._C._cuda_endAllocateToPool(index, pool)


def drop_pool(index: int, pool: tuple[int, int]) -> None:
    """Give up the share in a pool that `ask_pool` took, or that a recording did."""
    torch._C._cuda_releasePool(index, pool)


def drop_workspaces() -> None:
    """Give back what cuBLAS keeps for its next product; it takes it again.

    https://github.com/pytorch/pytorch/blob/main/torch/_inductor/cudagraph_trees.py (clear_cublas_manager)
    """
    torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def noted(device: torch.device) -> Iterator[list[dict[str, Any]]]:
    """Fill a list with what torch notes of a GPU's memory inside the block: what is taken and given back, in order.

    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError("torch's history of memory is on already, and would be lost")
    found: list[dict[str, Any]] = []
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    try:
        yield found
        index = torch.cuda.current_device() if device.index is None else device.index
        found += torch.cuda.memory._snapshot(device)["device_traces"][index]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def takes_no_hooks() -> bool:
    """Whether saved tensors are nobody else's here: inside of `torch.func` (grad, vmap, jvp and so on), of forward-mode
    derivatives, or where the caller has said so by `torch.autograd.graph.disable_saved_tensors_hooks`.
    """
    # https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/init.cpp
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
