"""A model without memory on the CPU that keeps and casts what the same model would on a GPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.library import Library, fallthrough_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# torch 2.11 remarks on each operator of its own that is put right below, though it was asked for
warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Fakes pose as CPU tensors, because backward over fakes that pose as CUDA tensors crashes without a GPU, and
# `torch.autocast("cuda")` switches itself off there. So the casts are those of autocast on the CPU, and what
# differs from CUDA is put right here, operator by operator.
# https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference; names are those of torch's dispatcher.

# CUDA computes these in float32, the CPU in whatever type comes in.
TO_FLOAT32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh softplus tan
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
    layer_norm native_layer_norm group_norm rms_norm renorm norm.Scalar norm.ScalarOpt_dim
    frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity dist pdist logsumexp
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
    upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
""")
# CUDA asks these for a float32 result unless the caller names a type; their input may stay bfloat16.
FLOAT32_RESULT = _names("""
    softmax.int log_softmax.int sum sum.dim_IntList cumsum cumprod linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord
""")
# CUDA computes these in bfloat16, the CPU only what they consist of.
TO_BFLOAT16 = _names("addmv addr chain_matmul convolution _convolution einsum linalg_multi_dot mv")
# CUDA computes these in the widest type of their inputs.
TO_WIDEST = _names(
    "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot"
)
# The CPU casts for these, CUDA does not.
AS_THEY_COME = _names("""
    cat stack index_copy cross_entropy_loss grid_sampler_2d grid_sampler_3d
    reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
    avg_pool3d adaptive_avg_pool3d max_pool3d adaptive_max_pool3d max_unpool2d max_unpool3d
    fractional_max_pool2d fractional_max_pool3d
""")


def ghost_of(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Copy a model, but none of its weights: parameters and buffers of the copy are fakes on the CPU."""
    # deepcopy takes what it finds in its memo for copied, so no weight is ever held twice, and tied ones stay tied
    memo: dict[int, Any] = {}
    with mode:
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(_fake(parameter), requires_grad=parameter.requires_grad)
        for buffer in model.buffers():
            memo[id(buffer)] = _fake(buffer)
        # what was computed and kept cannot be copied: weights that were pruned, features
        for module in model.modules():
            for each in tree_leaves(vars(module)):
                if isinstance(each, Tensor) and each.grad_fn is not None:
                    memo[id(each)] = _fake(each)
    return copy.deepcopy(model, memo)


def _fake(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


class AnyNumber(TorchDispatchMode):
    """Gives a number to who asks a fake for one: an optimizer, whose sizes do not depend on the count of its steps."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0.5  # neither 0 nor 1: corrections for the first steps divide by it and by its rest
        return func(*args, **(kwargs or {}))


# Norms that mix types, and which of their arguments is the weight.
_NORM_WEIGHT = {
    "native_batch_norm": 1,
    "_native_batch_norm_legit": 1,
    "native_batch_norm_backward": 2,
    "native_group_norm": 1,
    "native_group_norm_backward": 4,
    "native_layer_norm": 2,
    "native_layer_norm_backward": 5,
}


def mended(kind: str, args: tuple[Any, ...], result: Any) -> Any:
    """Return a norm's result in the types that its kernels give, where fakes mix up those of pictures and weights."""
    weight = args[_NORM_WEIGHT[kind]] if kind in _NORM_WEIGHT else None
    if weight is None:
        return result
    pictures, *rest = result  # the rest is mean and deviation, or gradients of weight and bias
    pictures = None if pictures is None else pictures.to(args[0].dtype)
    return (pictures, *(None if each is None else each.to(weight.dtype) for each in rest))


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Let CPU tensors be cast by CUDA's lists under autocast, and let dropout keep what it keeps on CUDA.

    Torch's dispatcher is changed for the whole process and changed back at the end: nothing else should compute on
    the CPU meanwhile. The dispatcher rather than Python's functions, because cross-entropy is in Python one
    function, and inside it are two on the lists.
    """
    casts, autograd = Library("aten", "IMPL", "AutocastCPU"), Library("aten", "IMPL", "AutogradCPU")
    policies = {_to_float32: TO_FLOAT32, _to_bfloat16: TO_BFLOAT16, _to_widest: TO_WIDEST}
    for policy, names in policies.items():
        for name in names:
            casts.impl(name, policy(_overload(name)), allow_override=True)
    for name in FLOAT32_RESULT:
        casts.impl(name, _float32_result(_overload(name)))
    for name in AS_THEY_COME:
        casts.impl(name, fallthrough_kernel, allow_override=True)
    autograd.impl("dropout", _dropout)
    try:
        yield
    finally:
        # kernels go with the last reference to their library, and those that were there before show again
        del casts, autograd


Kernel = Callable[..., Any]


def _overload(name: str) -> Kernel:
    operator, _, overload = name.partition(".")
    found: Kernel = getattr(getattr(torch.ops.aten, operator), overload or "default")
    return found


def _to_float32(function: Kernel) -> Kernel:
    return _casting(function, lambda _: torch.float32)


def _to_bfloat16(function: Kernel) -> Kernel:
    return _casting(function, lambda _: torch.get_autocast_dtype("cpu"))


def _to_widest(function: Kernel) -> Kernel:
    def widest(tensors: list[Tensor]) -> torch.dtype:
        low = torch.get_autocast_dtype("cpu")
        return low if all(tensor.dtype == low for tensor in tensors) else torch.float32

    return _casting(function, widest)


def _casting(function: Kernel, choose: Callable[[list[Tensor]], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = choose([each for each in tree_leaves((args, kwargs)) if _eligible(each)])
        args, kwargs = tree_map(lambda each: each.to(dtype) if _eligible(each) else each, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return kernel


def _float32_result(function: Kernel) -> Kernel:
    names = [argument.name for argument in function._schema.arguments]  # type: ignore[attr-defined]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("dtype") is None and _eligible(given["self"]):
            given["dtype"] = torch.float32
        with torch.autocast("cpu", enabled=False):
            return function(**given)

    return kernel


def _eligible(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """Keep a mask of bytes, as CUDA's one kernel does; the CPU keeps one of the type of the values."""
    if not train or p == 0 or values.numel() == 0:
        return values
    kept: Tensor = torch.native_dropout(values, p, train)[0]
    return kept
