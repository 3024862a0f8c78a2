"""How long operations take: kernels on the device from its rates, calls on the host, and a step from both.

The host calls operations one by one and runs ahead of a GPU, which works them off:

    host    |call|call|call|call|.. waits ..          a step takes as long as the slower of the two
    device    |===kernel===|==kernel==|=kernel=|
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from outsize.plan.step import StepOp
from outsize.units import Size

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Origin = Literal["published", "measured"]
OpSeconds = Callable[[StepOp], float]

# What the host takes to call one small operation of eager PyTorch: the median over 30 steps of four networks on the one
# server with an H200 that was measured (16 cores, torch 2.11), where it went from 14 to 25 us. Other hosts: not known.
HOST_OP_S = 18e-6


@dataclass(frozen=True)
class Rates:
    """What one device does in a second: peaks as published without sparsity, or the best that was measured."""

    fp32_flops_per_s: float
    tf32_flops_per_s: float | None  # None: no units for it
    fp16_flops_per_s: float | None  # with sums in float32, as training wants them
    bf16_flops_per_s: float | None
    memory_bytes_per_s: float
    to_device_bytes_per_s: float | None  # pinned host memory, one direction, no other GPU copying
    to_host_bytes_per_s: float | None
    crowded_bytes_per_s: float | None  # each GPU, one direction, while all GPUs of the host copy
    origin: Origin
    host_op_s: float = HOST_OP_S  # for the host to call one small operation

    def flops_per_s(self, precision: Precision) -> float:
        """Return the rate of a precision; without units of its own it is computed in float32, or emulated."""
        own: float | None = getattr(self, f"{precision}_flops_per_s")
        return self.fp32_flops_per_s if own is None else own

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


# Shares of published peaks in tf32 and bf16, fitted to kernels of U-Net and WiderResNet-38 on an H200. Convolutions
# of DeepLabV3+, many small ones and dilated depthwise ones, take up to 1.8 times as long. fp16 is taken to be as bf16,
# fp32 is a guess between a convolution (0.44) and a matrix product (0.76) that were measured.
# No layer reaches a peak: clocks sink under load, and few layers have the shape of a large matrix product. Gradients
# reach less than the way forward: that of the weights sums over all pixels, and TF32 has no fast kernels for it.
FORWARD: dict[Precision, float] = {"fp32": 0.55, "tf32": 0.72, "fp16": 0.75, "bf16": 0.75}
BACKWARD: dict[Precision, float] = {"fp32": 0.45, "tf32": 0.5, "fp16": 0.72, "bf16": 0.72}
MEMORY = 0.9
# A measurement falls short of the peak, too, by these shares: what is left to lose against a measured rate is less.
MEASURED = {"arithmetic": 0.72, "memory": 0.88}
KERNEL_S = 3e-6  # the shortest time of a kernel, and from one to the next

# How often an operation goes over the bytes that are counted for it, at the bandwidth of a plain copy: numbers of four
# bytes, and of two. All others once. Batch norm reads its input for statistics first; in bfloat16 cuDNN has none, and
# torch's own is slow. Joining and pooling take numbers one by one, so short ones gain nothing. Where many results
# add to one place they wait for each other.
PASSES: dict[str, tuple[float, float]] = {
    "native_batch_norm": (1.9, 5.8),
    "native_batch_norm_backward": (1.9, 3.2),
    "fused_norm": (1.65, 1.9),  # statistics, then the norm with its ReLU: three passes for two counted
    "fused_norm_backward": (1.75, 2.2),  # sums, then the gradient: five for three
    "fused_pool": (1.3, 1.3),
    "fused_pool_backward": (1.3, 1.3),
    "fused_join": (1.1, 1.1),
    "fused_cross_entropy": (1.5, 3.0),
    "fused_cross_entropy_backward": (1.5, 3.0),
    "cat": (1.4, 2.4),
    "max_pool2d_with_indices": (2.3, 3.2),
    "max_pool2d_with_indices_backward": (2.5, 4.0),
    "upsample_bilinear2d": (10.0, 10.0),
    "upsample_bilinear2d_backward": (16.0, 16.0),
    "_softmax": (2.5, 2.5),
    "_log_softmax": (2.0, 2.0),
    "_log_softmax_backward_data": (1.7, 1.7),
    "nll_loss2d_forward": (16.0, 16.0),
    "nll_loss2d_backward": (5.0, 5.0),
    "max": (3.2, 3.2),
}
# Batch norm by statistics that are known, in prediction: cuDNN's, for all but bfloat16, takes long for any size.
_KNOWN_NORM_PASSES, _KNOWN_NORM_S = (1.0, 1.9), 70e-6
_FOREACH_PASSES = 1.2
# A convolution's gradients are two kernels that read the same twice, with sums to be cleared and added up around them.
_GRADIENT_PASSES, _GRADIENT_KERNELS = 1.4, 4
# A bias is added behind a convolution, and summed for its gradient, by kernels that take numbers one by one: four bytes
# at a time, or two.
_BIAS_PASSES = (2.6, 5.2)
# Pictures of a few bands are filled up to eight, and no new kernel takes them: share of the peak that is reached.
_ALIGNED, _FEW_BANDS = 8, 0.1
# Convolutions of so few operations for a byte (depthwise, to a few classes) are not made for tensor cores.
_THIN_FLOPS_PER_BYTE, _THIN_PASSES = 10, 3.0

# What the host spends on an operation, as a multiple of a small one. cuDNN looks a convolution up and asks for
# workspace, for gradients twice; a foreach operation lists every weight of the model. Fitted as HOST_OP_S was.
CONVOLUTION_CALLS, GRADIENT_CALLS, FOREACH_CALLS = 7.0, 11.0, 28.0
FUSED_CALLS = 6.0  # up to three kernels, launched from Python
# Besides calling its operations again: Python for each tensor that a recipe makes, and for each that autograd keeps in
# a block under torch's checkpoint, which counts it in forward, and in backward again, and hands it over (five to nine
# calls for each of four networks).
REMADE_CALLS, CHECKPOINTED_CALLS = 1.7, 6.0
BUFFER_CALLS = (
    4.0  # for a batch norm in such a block: its statistics are set aside for the second run, and put back
)
# Where autograd's graph does not tell how a tensor was made, its operations are watched in every forward: a ConvNeXt
# whose tensors are so small that only the host counts took 20 calls more for each (GELU, LayerNorm, scaled sums).
WATCHED_CALLS = 20.0
TOLD_BY_GRAPH = {"native_batch_norm", "cudnn_batch_norm", "fused_norm", "add", "_to_copy"}
TOLD_BY_GRAPH |= {"relu", "leaky_relu", "silu", "hardswish"}
MOVED_CALLS = (
    4.0  # for each storage that is moved: two copies, their marks and waits, and the Python between them
)

# On a CPU a convolution's gradients take so much longer apart, for each part puts its input in order: steps of a
# U-Net and of ERFNet took 13 and 19 % longer with backward split (torch 2.15, one thread).
_SPLIT_ON_HOST = 0.3

ARITHMETIC, GRADIENTS, NORMS, NORM_GRADIENTS, OPTIMIZER, REST = CLASSES = (
    "arithmetic",
    "arithmetic, backward",
    "norms",
    "norms, backward",
    "optimizer",
    "rest",
)
_PRECISION: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
_BATCHED = {"bmm", "baddbmm"}  # of two results: neither is a weight
_PRODUCTS = {"mm", "addmm", "mv", "addmv"} | _BATCHED


def finds_gradients(kind: str, *, backward: bool) -> bool:
    """Whether an operation that multiplies or norms finds gradients: in a block that is run again it does not.

    The name tells, torch's or the profiler's (`FusedNormBackward`), but for products, which have one on both ways.
    """
    return backward and (kind in _PRODUCTS or "backward" in kind.lower())


def class_of(kind: str, *, backward: bool) -> str:
    """Return the class of an operation by torch's name for it: within a class all are off by about the same."""
    gradients = finds_gradients(kind, backward=backward)
    if "conv" in kind or kind in _PRODUCTS or "scaled_dot_product" in kind:
        return GRADIENTS if gradients else ARITHMETIC
    if "norm" in kind.lower() and not kind.startswith("_foreach"):
        return NORM_GRADIENTS if gradients else NORMS
    return OPTIMIZER if kind.startswith(("_foreach", "_fused")) else REST


def op_seconds(op: StepOp, rates: Rates, *, tf32: bool, training: bool = True) -> float:
    """Return the time of one operation's kernels."""
    if not op.moved_bytes:
        return 0.0  # a view, or memory that is asked for and not yet touched
    part = MEASURED if rates.origin == "measured" else dict.fromkeys(MEASURED, 1.0)
    once_s = op.moved_bytes * part["memory"] / (rates.memory_bytes_per_s * MEMORY)
    if not op.flops:
        return _moving_s(op, once_s, training=training)
    # torch rounds to TF32 in convolutions; in products only where that is allowed
    precision = _PRECISION.get(op.dtype, "tf32" if tf32 and op.kind not in _PRODUCTS else "fp32")
    full_s = op.flops * part["arithmetic"] / rates.flops_per_s(precision)
    if op.flops < _THIN_FLOPS_PER_BYTE * op.moved_bytes:
        once_s *= _THIN_PASSES
    once_bias_s = op.biased_bytes * part["memory"] / (rates.memory_bytes_per_s * MEMORY)
    bias_s = once_bias_s * _BIAS_PASSES[op.dtype in _PRECISION]
    # added, not the longer of both: few convolutions load and multiply at the same time as well as they could
    if finds_gradients(op.kind, backward=op.backward):
        own_s = full_s / BACKWARD[precision] + once_s * _GRADIENT_PASSES + KERNEL_S * _GRADIENT_KERNELS
        return own_s + bias_s
    if 0 < op.depth < _ALIGNED:
        full_s, share = full_s * _ALIGNED / op.depth, _FEW_BANDS
    else:
        share = FORWARD[precision]
    return full_s / share + once_s + bias_s + KERNEL_S


def _moving_s(op: StepOp, once_s: float, *, training: bool) -> float:
    half = op.dtype in _PRECISION
    if op.kind.startswith("_foreach"):
        return once_s * _FOREACH_PASSES + KERNEL_S
    if op.kind == "native_batch_norm" and not training:
        return once_s * _KNOWN_NORM_PASSES[half] + (KERNEL_S if op.dtype == "bfloat16" else _KNOWN_NORM_S)
    return once_s * PASSES.get(op.kind, (1.0, 1.0))[half] + KERNEL_S


def host_calls(op: StepOp) -> float:
    """Return what the host spends on an operation, as a multiple of a small one; a view counts as nothing."""
    if not op.moved_bytes:
        return 0.0
    if op.kind.startswith(("_foreach", "_fused")):
        return FOREACH_CALLS
    if "conv" in op.kind:
        return GRADIENT_CALLS if finds_gradients(op.kind, backward=op.backward) else CONVOLUTION_CALLS
    if op.kind.startswith("fused"):
        return FUSED_CALLS
    return 1.0


def remade_calls(ops: Iterable[StepOp]) -> float:
    """Return what the host spends on a tensor that is made again by these operations, called again among it."""
    listed = list(ops)
    is_told = all(op.kind.rstrip("_") in TOLD_BY_GRAPH for op in listed)
    return (REMADE_CALLS if is_told else WATCHED_CALLS) + sum(map(host_calls, listed))


@dataclass(frozen=True)
class Learnt:
    """What a real step on a machine teaches about others of the same model there."""

    factors: Mapping[str, float]  # real over modelled time of kernels, by class: where no more is known
    host_op_s: float  # for the host to call a small operation, in this model
    usable_share: (
        float | None
    )  # of the memory that torch holds, what tensors filled; None: not to be seen on a CPU
    batch: int
    side_px: Size
    # By group (`plan.seen.group_of`), in the order they ran: bytes that each convolution took and gave back, and real
    # over modelled time of each operation, or one value for all of a group where others ran than are listed.
    workspaces: Mapping[str, Sequence[int]] = field(default_factory=dict)
    paces: Mapping[str, Sequence[float]] = field(default_factory=dict)
    room_bytes: float = 0.0  # that tensors might fill when it was run; 0: not bounded


@dataclass(frozen=True)
class Clock:
    """Tells times on one machine, by its rates and by what a profiled step has taught."""

    rates: Rates
    tf32: bool
    overlaps: bool  # host and device work at the same time: on a GPU, not on a CPU
    training: bool = True
    factors: Mapping[str, float] = field(default_factory=dict)  # as in Learnt

    def op_s(self, op: StepOp) -> float:
        """Return the time of an operation's kernels."""
        factor = op.pace or self.factors.get(class_of(op.kind, backward=op.backward), 1.0)
        return factor * op_seconds(op, self.rates, tf32=self.tf32, training=self.training)

    def again_s(self, op: StepOp) -> float:
        """Return the time to make an operation's result again: what a norm found out the first time is kept."""
        if "norm" not in op.kind:
            return self.op_s(op)
        return (op.pace or self.factors.get(NORMS, 1.0)) * op_seconds(
            replace(op, kind="mul"), self.rates, tf32=self.tf32, training=self.training
        )

    def later_s(self, op: StepOp) -> tuple[float, float]:
        """Return what of an operation finds gradients of weights, and how much longer it takes in two parts.

        Both parts read the gradient, and Python calls the second one.
        """
        if not op.flops or not finds_gradients(op.kind, backward=op.backward) or op.kind in _BATCHED:
            return 0.0, 0.0
        whole_s = self.op_s(op)
        if not self.overlaps:
            return whole_s / 2, whole_s * _SPLIT_ON_HOST
        again_s = self.op_s(replace(op, kind="copy", flops=0, moved_bytes=op.moved_bytes // 3))
        return whole_s / 2, again_s + (GRADIENT_CALLS / 2 + FUSED_CALLS) * self.rates.host_op_s

    def taught(self, learnt: Learnt) -> Clock:
        """Return the clock that goes by what a real step has taught."""
        return replace(self, factors=learnt.factors, rates=replace(self.rates, host_op_s=learnt.host_op_s))

    def by_class(self, ops: Iterable[StepOp]) -> dict[str, float]:
        """Return the time of all kernels of each class."""
        found = dict.fromkeys(CLASSES, 0.0)
        for op in ops:
            found[class_of(op.kind, backward=op.backward)] += self.op_s(op)
        return found

    def step_s(self, ops: Iterable[StepOp], num_calls: float = 0.0) -> float:
        """Return the time of operations that run one after another; `num_calls` are spent by the host besides."""
        listed = list(ops)
        host_s = self.rates.host_op_s * (num_calls + sum(map(host_calls, listed)))
        return together(sum(map(self.op_s, listed)), host_s, overlaps=self.overlaps)

    def settings(self) -> dict[str, Any]:
        """Return what a Task of the planner knows about time."""
        return {
            "op_s": self.op_s,
            "again_s": self.again_s,
            "host_op_s": self.rates.host_op_s,
            "overlaps": self.overlaps,
        }


def together(device_s: float, host_s: float, *, overlaps: bool) -> float:
    """Return the time of a step: of the slower of device and host, or of both where they are one."""
    return max(device_s, host_s) if overlaps else device_s + host_s
