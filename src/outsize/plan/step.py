"""One step of a model as numbers: what runs, what memory it makes, and what autograd keeps for backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Key = tuple[str, int, int]
"""Names a saved tensor: path of the module that ran, which of its calls, which of the tensors saved there.

Counted are all tensors that autograd packs while that call of that module is the innermost one, in order, without
parameters and buffers of the model. What comes after in the plan, on another device or in another version of torch,
is kept: a plan may only name what it has seen.
"""

BLOCK_BYTES = 512  # what a GPU's allocator rounds sizes up to

Role = Literal["activation", "gradient", "weight", "optimizer", "input"]


def allocated_bytes(num_bytes: int) -> int:
    """Return what a GPU's allocator takes for so many bytes."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class StepOp:
    """One operation, forward or backward; operations are listed in the order they run."""

    index: int
    kind: str  # "convolution", "native_batch_norm", "relu_": torch's name without overload
    module: str  # path of the innermost module that runs it; "" in backward and outside of all modules
    call: int
    backward: bool
    inputs: tuple[int, ...]  # storages that are read
    outputs: tuple[int, ...]  # storages that are made or written to
    flops: int
    moved_bytes: int  # of all tensors read and written, each once
    dtype: str  # of the first output: "float32", "bfloat16"
    can_repeat: bool = True  # in backward, to recompute what it made: not in a frozen part of a model
    # of what a GPU adds a bias to behind a convolution, or of the gradient that it sums for one
    biased_bytes: int = 0
    depth: int = 0  # channels of what a convolution on a GPU reads; 0: not known, or in groups
    workspace_bytes: int = 0  # taken and given back before it ends, where that was seen: no shape tells it
    # module and call that runs it, as above; in backward those that it finds gradients for, whoever runs it
    layer: tuple[str, int] = ("", 0)
    pace: float = 0.0  # real over modelled time of its kernels, where that was seen; 0: not


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that tensors share, from the operation that makes it to the one before which it is gone."""

    index: int
    size_bytes: int  # as a GPU's allocator rounds it: a multiple of BLOCK_BYTES
    born: int  # -1: it was there before the step
    dies: int  # the number of operations: it outlives the step
    role: Role
    # the operation before which it would be gone if autograd kept nothing; None: not known, to be estimated
    let_go: int | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """One tensor that autograd keeps; several may share a storage."""

    key: Key
    storage: int
    size_bytes: int  # of the tensor itself, not rounded
    packed: int  # number of operations that had run: the next one keeps its input, or the last one its result


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A whole step: of training (forward, loss, backward, optimizer) or of prediction (forward alone)."""

    ops: tuple[StepOp, ...]
    storages: tuple[Storage, ...]
    saved: tuple[Saved, ...]
    training: bool
    modules: tuple[str, ...] = ()  # paths of all modules that were called
