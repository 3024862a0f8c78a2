"""On a GPU: compiled blocks train as plain ones do, and their memory is a share of the plain step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.memory import rise_bytes
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.plan import Compile, Plan, Recompute
from outsize.plan.ways.compiled import blocks_to_compile
from outsize.strategies.compiled import compiled
from outsize.strategies.compose import compose
from outsize.strategies.saved.hooks import recomputable

_PLAN = Plan(purpose="train", batch=4, limit_bytes=1, peak_bytes=1, exact=False, why=())
_SIDE_PX = 128
_DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _float32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before


def _unet() -> nn.Module:
    torch.manual_seed(2)
    model = build_model("unet", num_classes=3, in_channels=4, levels=3, width=16)
    return model.to(_DEVICE, memory_format=torch.channels_last)


def _blocks(model: nn.Module) -> tuple[str, ...]:
    shape = (4, 4, _SIDE_PX, _SIDE_PX)
    return blocks_to_compile(trace_step(model, shape, loss=lambda net, x: net(x).square().mean()))


def _images(num_samples: int, seed: int = 0) -> Tensor:
    shape = (num_samples, 4, _SIDE_PX, _SIDE_PX)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return images.to(_DEVICE, memory_format=torch.channels_last)


def _square(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"square": model(batch.images).float().square().sum()}


def _train(model: nn.Module, plan: Plan, *, bf16: bool) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step = compose(model, _square, plan, bf16=bf16)
    losses = []
    for number in range(5):
        images = _images(3 if number == 4 else 4, number)
        labels = torch.zeros(images[:, 0].shape, dtype=torch.uint8, device=_DEVICE)
        optimizer.zero_grad()
        batch = Batch(images, labels.bool(), ClassRasters(labels), {"square": float(labels.numel())})
        losses.append(step(batch, last=True)["square"])
        optimizer.step()
    return torch.stack(losses)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("kind", ["alone", "checkpoint", "recompute"])
def test_training_is_the_same(kind: str, bf16: bool) -> None:
    plain, ours = _unet(), _unet()
    paths = _blocks(ours)
    setting = Compile(paths)
    recompute = Recompute(blocks=paths[:2]) if kind == "checkpoint" else None
    if kind == "recompute":
        twin = _unet()
        with compiled(twin, setting, nullcontext)(), torch.autocast(_DEVICE, torch.bfloat16, enabled=bf16):
            keys = recomputable(twin, lambda: twin(_images(4)).float().square().sum())
        assert keys
        recompute = Recompute(saved=tuple(sorted(keys)))
    expected = _train(plain, _PLAN, bf16=bf16)
    found = _train(ours, replace(_PLAN, compile=setting, recompute=recompute), bf16=bf16)
    tolerance = 2e-2 if bf16 else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    for (name, a), b in zip(ours.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


def _rise_bytes(model: nn.Module, setting: Compile | None, num_samples: int) -> int:
    forward = nullcontext if setting is None else compiled(model, setting, nullcontext)
    images = _images(num_samples)

    def run() -> None:
        with torch.autocast(_DEVICE, torch.bfloat16), forward():
            loss = model(images).float().square().sum()
        loss.backward()
        model.zero_grad(set_to_none=True)

    for _ in range(3):
        run()
    found = rise_bytes(run, torch.device(_DEVICE))
    assert found is not None
    return found


def test_memory_is_the_same_share_of_the_plain_steps_for_other_batches() -> None:
    model = _unet()
    setting = Compile(_blocks(model))
    two, four = (_rise_bytes(model, setting, num) / _rise_bytes(model, None, num) for num in (2, 4))
    assert two == pytest.approx(four, rel=0.02)


def test_a_smaller_budget_takes_less() -> None:
    model = _unet()
    whole = _rise_bytes(model, Compile(_blocks(model)), 4)
    assert _rise_bytes(model, Compile(_blocks(model), activation_budget=0.3), 4) < 0.95 * whole
