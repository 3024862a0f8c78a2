"""A recorded step that has its memory by pages takes no more of it than its fullest moment, in whatever pieces."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import Fuse, Plan
from outsize.strategies.compose import Step, compose
from outsize.strategies.cudagraph.capture import Recordings
from outsize.strategies.cudagraph.pages import memory as paged
from outsize.strategies.cudagraph.pages.apart import OwnAddresses
from outsize.strategies.cudagraph.pages.memory import why_not_paged
from outsize.strategies.cudagraph.pages.pages import PAGE_BYTES
from outsize.tasks import task_of

DEVICE = torch.device("cuda")
STATISTICS = BandStatistics((0.0,) * 3, (1.0,) * 3)
PLAN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=(), fuse=Fuse())
PAGED = replace(PLAN, graph=True, paged=True)
NUM_STEPS = 6


def _batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((4, 3, 512, 640), generator=generator)
    labels = torch.randint(5, (4, 512, 640), generator=generator, dtype=torch.uint8)
    totals = task_of("segment").count_terms("cross_entropy", ClassRasters(labels), None)
    return Batch(images, torch.ones(labels.shape, dtype=torch.bool), ClassRasters(labels), totals).to(DEVICE)


def _step(model: nn.Module, plan: Plan, recordings: Recordings | None = None) -> Step:
    terms = task_of("segment").make_loss_terms("cross_entropy", STATISTICS, None)

    def fail(text: str) -> None:
        pytest.fail(text)

    return compose(model, terms, plan, bf16=True, tell=fail, recordings=recordings)


def _train(model: nn.Module, step: Step, between: Callable[[], object] = lambda: None) -> list[float]:
    """Train on another batch in each step, and do something `between` two halves."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number in range(NUM_STEPS):
        torch.manual_seed(number)
        losses.append(float(step(_batch(number), last=True)["cross_entropy"]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number == NUM_STEPS // 2:
            between()
    return losses


def _model(name: str, **options: int) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, num_classes=5, in_channels=3, **options).to(DEVICE).train()


@pytest.fixture(autouse=True)
def _clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def test_this_machine_can() -> None:
    assert why_not_paged() is None


@pytest.mark.parametrize("emptied", [False, True], ids=["", "emptied"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unet", {"width": 32, "levels": 4}),
        ("erfnet", {"width": 8}),
        ("smp:DeepLabV3Plus/resnet18", {}),  # enlarges by matrix products, whose shares it keeps
    ],
)
def test_it_trains_as_the_step_itself_within_its_pages(
    name: str, options: dict[str, int], emptied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if emptied:  # after each few operations torch forgets the addresses of what was given back
        monkeypatch.setattr(
            paged, "OwnAddresses", lambda index, handing, _: OwnAddresses(index, handing, 2**28)
        )
    model, recordings = _model(name, **options), Recordings()
    twins = [copy.deepcopy(model) for _ in range(2)]
    expected, again = (_train(twin, _step(twin, PLAN)) for twin in twins)
    unsure = max(abs(a - b) / a for a, b in zip(expected, again, strict=True))
    del twins
    gc.collect()
    torch.cuda.empty_cache()
    free_bytes, before_bytes = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    def validate() -> None:
        """Let the recording go, and fill the memory that it had with something else."""
        recordings.let_go()
        gc.collect()
        torch.cuda.empty_cache()
        torch.full((2**28,), torch.nan, device=DEVICE)

    found = _train(model, _step(model, PAGED, recordings), validate)
    peak_bytes = torch.cuda.max_memory_allocated() - before_bytes
    taken_bytes = free_bytes - torch.cuda.mem_get_info()[0]
    worst = max(abs(a - b) / a for a, b in zip(expected, found, strict=True))
    held_bytes = recordings.held_bytes
    assert held_bytes is not None
    print(f"\n{name}: losses {worst:.1e} apart, two plain {unsure:.1e}")
    sizes = {"peak": peak_bytes, "taken": taken_bytes, "held": held_bytes - before_bytes}
    print("MiB:", {name: round(num_bytes / 2**20) for name, num_bytes in sizes.items()})
    assert worst < max(5e-3, 3 * unsure)
    # each tensor leaves a part of its last page empty, and a graph takes a little itself: much only of so small a step
    assert taken_bytes < 1.05 * max(peak_bytes, held_bytes - before_bytes) + 60 * PAGE_BYTES
    recordings.let_go()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free_bytes - 64 * PAGE_BYTES  # modules that were loaded stay


class _Keeping(nn.Module):
    """Keeps what it made, beyond its step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        self.kept = made.detach()
        return made


def test_what_a_model_keeps_beyond_a_step_is_refused_and_steps_of_others_go_on() -> None:
    keeping = _Keeping().to(DEVICE).train()
    with pytest.raises(torch.OutOfMemoryError, match="made in a step are kept beyond it"):
        _step(keeping, PAGED)(_batch(0), last=True)
    model = _model("unet", width=8, levels=2)
    assert all(math.isfinite(loss) for loss in _train(model, _step(model, PAGED)))


def test_it_keeps_the_limit_of_the_process_and_leaves_it_as_it_was() -> None:
    model, recordings = _model("unet", width=32, levels=4), Recordings()
    _train(model, _step(model, PAGED, recordings))
    held_bytes, total_bytes = recordings.held_bytes, torch.cuda.mem_get_info()[1]
    assert held_bytes is not None
    recordings.let_go()
    gc.collect()
    torch.cuda.empty_cache()
    for share, fits in ((1.1, True), (0.9, False)):  # batches come and go beside it
        allowed = share * held_bytes / total_bytes
        torch.cuda.set_per_process_memory_fraction(allowed)
        try:
            step = _step(model, PAGED, recordings)
            if fits:
                _train(model, step)
                with pytest.raises(torch.OutOfMemoryError):  # pages count
                    torch.empty(int(0.3 * held_bytes), dtype=torch.uint8, device=DEVICE)
                recordings.let_go()
            else:
                with pytest.raises(torch.OutOfMemoryError, match="allowed"):
                    _train(model, step)
            assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(allowed)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()
