"""Models without memory, and the types and tensors that CUDA would give them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from outsize.errors import TraceError
from outsize.measure.tracing import ghost
from outsize.measure.tracing.ghost import as_on_cuda, ghost_of
from outsize.measure.tracing.recorder import record
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.step import StepFacts


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    logits = model(images)
    labels = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.long)
    return F.cross_entropy(logits, labels, reduction="sum")


def _unet(norm: str) -> nn.Module:
    return build_model(
        "unet", num_classes=3, in_channels=3, levels=3, width=4, norm=norm, upsampling="bilinear"
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: _unet("batch"),
    "unet, group norm": lambda: _unet("group"),
    "smp Unet": lambda: smp.Unet("resnet18", encoder_weights=None, classes=3),
    "smp FPN": lambda: smp.FPN("resnet18", encoder_weights=None, classes=3),
}


def test_a_ghost_is_tied_and_frozen_where_the_model_is() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.BatchNorm1d(5)).double()
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    twin = ghost_of(model, FakeTensorMode())
    assert twin[1].weight is twin[0].weight is not model[0].weight
    assert isinstance(twin[0].weight, FakeTensor)
    assert isinstance(twin[2].running_mean, FakeTensor)
    assert twin[0].weight.dtype == torch.float64
    assert not twin[0].bias.requires_grad
    assert list(twin.state_dict()) == list(model.state_dict())


# What CUDA makes of a bfloat16 input under autocast, as torch's page on mixed precision has it.
_DTYPES: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype]] = {
    "convolution": (lambda x: F.conv2d(x.float(), torch.ones(4, 4, 1, 1)), torch.bfloat16),
    "transposed": (lambda x: F.conv_transpose2d(x.float(), torch.ones(4, 4, 1, 1)), torch.bfloat16),
    "linear": (lambda x: F.linear(x.float(), torch.ones(3, 8)), torch.bfloat16),
    "matmul": (lambda x: x.float() @ x.float(), torch.bfloat16),
    "einsum": (lambda x: torch.einsum("bchw,bcwv->bchv", x.float(), x.float()), torch.bfloat16),
    "prelu": (lambda x: F.prelu(x.float(), torch.ones(1)), torch.bfloat16),
    "batch norm": (
        lambda x: F.batch_norm(x, None, None, torch.ones(4), torch.ones(4), training=True),
        torch.bfloat16,
    ),
    "relu": (torch.relu, torch.bfloat16),
    "sigmoid": (torch.sigmoid, torch.bfloat16),
    "gelu": (F.gelu, torch.bfloat16),
    "max pool": (lambda x: F.max_pool2d(x, 2), torch.bfloat16),
    "average pool": (lambda x: F.avg_pool2d(x, 2), torch.bfloat16),
    "global pool": (lambda x: F.adaptive_avg_pool2d(x, 1), torch.bfloat16),
    "mean": (lambda x: x.mean((2, 3)), torch.bfloat16),
    "add": (lambda x: x + x, torch.bfloat16),
    "add float32": (lambda x: x + x.float(), torch.float32),
    "cat": (lambda x: torch.cat((x, x)), torch.bfloat16),
    "cat float32": (lambda x: torch.cat((x, x.float())), torch.float32),
    "reflection pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), torch.bfloat16),
    "dropout": (lambda x: F.dropout(x, 0.5), torch.bfloat16),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), torch.float32),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), torch.float32),
    "group norm": (lambda x: F.group_norm(x, 2), torch.float32),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), torch.float32),
    "softmax": (lambda x: x.softmax(1), torch.float32),
    "softmax, asked": (lambda x: x.softmax(1, dtype=torch.bfloat16), torch.bfloat16),
    "log softmax": (lambda x: x.log_softmax(1), torch.float32),
    "cross-entropy": (
        lambda x: F.cross_entropy(x, torch.zeros(2, 8, 8, dtype=torch.long), reduction="none"),
        torch.float32,
    ),
    "sum": (lambda x: x.sum(), torch.float32),
    "power": (lambda x: x**2, torch.float32),
    "exp": (torch.exp, torch.float32),
    "norm": (F.normalize, torch.float32),
}


@pytest.mark.parametrize("name", _DTYPES)
def test_types_are_those_of_cuda(name: str) -> None:
    compute, expected = _DTYPES[name]
    with as_on_cuda(), torch.autocast("cpu", torch.bfloat16):
        assert compute(torch.randn(2, 4, 8, 8).bfloat16()).dtype == expected


@pytest.mark.parametrize("name", ["group norm", "softmax", "sum", "power", "bilinear", "cat", "dropout"])
def test_double_stays_double(name: str) -> None:
    with as_on_cuda(), torch.autocast("cpu", torch.bfloat16):
        assert _DTYPES[name][0](torch.randn(2, 4, 8, 8, dtype=torch.float64)).dtype == torch.float64


def _dispatched(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))


def test_the_lists_are_those_that_torch_has() -> None:
    cast = {*ghost.TO_FLOAT32, *ghost.FLOAT32_RESULT, *ghost.TO_BFLOAT16, *ghost.TO_WIDEST}
    # torch casts the input of rms_norm since 2.12; in 2.11 it is the same without a cast
    assert all(_dispatched(name, "AutocastCUDA") for name in cast - {"rms_norm"})
    assert not any(_dispatched(name, "AutocastCPU") for name in cast - {"grid_sampler"})
    assert all(_dispatched(name, "AutocastCPU") for name in ghost.AS_THEY_COME)
    assert not any(_dispatched(name, "AutocastCUDA") for name in ghost.AS_THEY_COME)


def test_the_dispatcher_is_left_as_it_was() -> None:
    x = torch.randn(2, 4, requires_grad=True)

    def seen() -> tuple[object, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            low = (x @ x.T).softmax(1)
            return low.dtype, torch.cat((low, low.float())).dtype, type(F.dropout(x).grad_fn)

    before = seen()
    with as_on_cuda():
        assert seen() != before
    assert seen() == before
    with pytest.raises(TraceError):
        trace_step(nn.Conv2d(3, 3, 1), (1, 4, 8, 8), loss=_loss)
    assert seen() == before


def _forward_on_fake_cuda(model: nn.Module, *, bf16: bool) -> StepFacts:
    """Run forward and loss on fakes that pose as CUDA tensors, under torch's own lists for CUDA."""
    memo: dict[int, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for each in model.parameters():
            memo[id(each)] = nn.Parameter(torch.empty_like(each, device="cuda"))
        for each in model.buffers():
            memo[id(each)] = torch.empty_like(each, device="cuda")
        twin = copy.deepcopy(model, memo).train()
        images = torch.empty(2, 3, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)

        def run() -> None:
            torch.set_autocast_enabled("cuda", bf16)  # the context manager would switch itself off
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            try:
                with torch.device("cuda"):
                    _loss(twin, images)
            finally:
                torch.set_autocast_enabled("cuda", False)
                torch.clear_autocast_cache()

        return record(run, twin, given=(images,))


def _skip_group_norm_of_old_torch(bf16: bool) -> None:
    if not bf16 and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 copies channels-last input of group norm on a GPU, and fakes do not tell")


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch knows nothing of CUDA")
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_forward_runs_the_operations_that_cuda_would_run(name: str, bf16: bool) -> None:
    model = MODELS[name]().to(memory_format=torch.channels_last)
    theirs = _forward_on_fake_cuda(model, bf16=bf16)
    ours = trace_step(model, (2, 3, 64, 64), loss=_loss, bf16=bf16)

    def told(facts: StepFacts) -> list[tuple[str, str, str, int]]:
        ops = [op for op in facts.ops if op.kind != "empty"]
        return [(op.kind.replace("cudnn_", "native_"), op.dtype, op.module, op.moved_bytes) for op in ops]

    if "group norm" in name or "FPN" in name:
        _skip_group_norm_of_old_torch(bf16)
    assert told(ours)[: len(told(theirs))] == told(theirs)
    # cuDNN's batch norm keeps one more, of a size that fakes do not know
    kept = [each for each in theirs.saved if each.size_bytes]
    assert [(each.key, each.size_bytes) for each in ours.saved] == [
        (each.key, each.size_bytes) for each in kept
    ]
