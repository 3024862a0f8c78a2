"""On a GPU: `outsize.within` keeps a module that cannot be followed on shapes within a cap on the process."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import outsize

DEVICE = torch.device("cuda", 0)
IMAGES_SHAPE = (8, 3, 256, 256)


class _Net(nn.Module):
    """Eight blocks of norms and activations; one that is fussy looks at a number."""

    def __init__(self, *, fussy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [3] + [32] * 8
        self.fussy = fussy
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(size, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
                for size in sizes[:-1]
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        if self.fussy and images.mean().item() > 1e9:
            images = -images
        found: Tensor = self.blocks(images)
        return found


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Round little: gradients through so many norms nearly cancel, and other algorithms are taken in less memory."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    found: Tensor = model(images).square().mean()
    return found


def _gradients(model: nn.Module, images: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    _loss(model, images).backward()
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("fussy", [False, True], ids=["followed", "recorded"])
@pytest.mark.parametrize("share", [0.8, 0.6])
def test_steps_run_where_everything_kept_does_not_fit(fussy: bool, share: float) -> None:
    model = _Net(fussy=fussy).to(DEVICE)
    images = torch.randn(IMAGES_SHAPE, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    expected = _gradients(copy.deepcopy(model), images)
    plain_bytes = torch.cuda.max_memory_allocated(DEVICE)
    torch.cuda.empty_cache()
    _, total_bytes = torch.cuda.mem_get_info(DEVICE)
    budget = int(share * plain_bytes / 0.85)
    torch.cuda.set_per_process_memory_fraction(budget / total_bytes, DEVICE)
    fit = outsize.within(model, images, budget, optimizer=None, loss=_loss)
    assert (fit.recorded is not None) == fussy
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    with fit:
        for _ in range(3):
            found = _gradients(model, images)
    taken_bytes = torch.cuda.max_memory_allocated(DEVICE)
    print(
        f"{plain_bytes} plain, {fit.plan.peak_bytes} predicted, {taken_bytes} taken of {budget}: {fit.plan.why[-1]}"
    )
    assert taken_bytes <= 1.05 * fit.plan.peak_bytes + sum(each.nbytes for each in expected) * 2
    apart = [
        float((one - other).abs().max() / other.abs().max())
        for one, other in zip(found, expected, strict=True)
    ]
    print(f"gradients are {max(apart):.1e} apart")
    assert max(apart) < 1e-5
