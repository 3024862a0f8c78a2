"""A step that is recorded as a CUDA graph trains as the step itself does."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.losses.loss import IGNORE
from outsize.models import build_model
from outsize.plan.plan import Fuse, Plan, Recompute
from outsize.strategies.compose import compose
from outsize.strategies.cudagraph.capture import NUM_PLAIN
from outsize.tasks import task_of

DEVICE = torch.device("cuda")
STATISTICS = BandStatistics((0.0,) * 3, (1.0,) * 3)
PLAN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=(), fuse=Fuse())


def _batches(sides: list[tuple[int, int]]) -> list[Batch]:
    """Batches with ever more pixels that are not labelled: each has another total."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, (height, width) in enumerate(sides):
        images = torch.randn((2, 3, height, width), generator=generator)
        labels = torch.randint(5, (2, height, width), generator=generator, dtype=torch.uint8)
        labels[:, : 2 * number] = IGNORE
        totals = task_of("segment").count_terms("cross_entropy", ClassRasters(labels), None)
        found.append(
            Batch(images, torch.ones(labels.shape, dtype=torch.bool), ClassRasters(labels), totals).to(DEVICE)
        )
    return found


def _train(
    start: nn.Module,
    batches: list[Batch],
    *,
    graph: bool,
    freeze_at: int | None = None,
    blocks: tuple[str, ...] = (),
) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    model = copy.deepcopy(start).to(DEVICE).to(memory_format=torch.channels_last).train()
    told: list[str] = []
    terms = task_of("segment").make_loss_terms("cross_entropy", STATISTICS, None)
    recompute = Recompute(blocks=blocks) if blocks else None
    plan = Plan(**{**PLAN.__dict__, "graph": graph, "recompute": recompute})
    step = compose(model, terms, plan, bf16=True, tell=told.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number, batch in enumerate(batches):
        if number == freeze_at:
            for parameter in list(model.parameters())[:4]:
                parameter.requires_grad_(False)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + number)
        torch.manual_seed(number)
        losses.append(float(step(batch, last=True)["cross_entropy"]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, model.state_dict(), told


def _apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(
        float((one[name].double() - other[name].double()).norm() / one[name].double().norm().clamp(min=1e-3))
        for name in one
    )


@pytest.mark.parametrize(("name", "options"), [("unet", {"width": 8, "levels": 3}), ("erfnet", {"width": 4})])
def test_a_recorded_step_trains_as_the_step_itself(name: str, options: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=5, in_channels=3, **options)
    batches = _batches([(64, 96)] * 12)
    plain, again = (_train(model, batches, graph=False) for _ in range(2))
    recorded = _train(model, batches, graph=True)
    unsure = max(abs(a - b) / a for a, b in zip(plain[0], again[0], strict=True))
    worst = max(abs(a - b) / a for a, b in zip(plain[0], recorded[0], strict=True))
    weights = _apart(plain[1], recorded[1]), _apart(plain[1], again[1])
    print(f"{name}: losses {worst:.1e} (two plain {unsure:.1e}), weights {weights[0]:.1e} ({weights[1]:.1e})")
    assert recorded[2] == []
    # dropout draws what it would draw, totals and learning rates change from step to step; the rest is rounding
    assert worst < max(5e-3, min(5e-2, 3 * unsure))
    # two plain runs of a network this small, in bfloat16, end far apart
    assert weights[0] < max(2e-2, 3 * weights[1])


@pytest.mark.parametrize(
    "drops", [None, nn.Dropout(0.5), nn.Dropout2d(0.5)], ids=["nothing", "numbers", "channels"]
)
def test_blocks_that_are_run_again_are_recorded(drops: nn.Module | None) -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=5, in_channels=3, width=8, levels=3)
    if drops is not None:  # before more layers, that need in the second run what was dropped in the first
        model.bottleneck.insert(1, drops)
    batches, blocks = _batches([(64, 96)] * 8), ("encoder.0", "bottleneck")
    plain, recorded = (_train(model, batches, graph=graph, blocks=blocks) for graph in (False, True))
    assert recorded[2] == []
    worst = max(abs(a - b) / a for a, b in zip(plain[0], recorded[0], strict=True))
    print(f"blocks: losses {worst:.1e}")
    assert worst < 5e-3


def test_another_shape_and_frozen_weights_are_recorded_anew() -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=5, in_channels=3, width=8, levels=3)
    batches = _batches([(64, 96)] * 6 + [(32, 64)] * 6 + [(64, 96)] * 6)
    plain, recorded = (_train(model, batches, graph=graph, freeze_at=12) for graph in (False, True))
    assert max(abs(a - b) / a for a, b in zip(plain[0], recorded[0], strict=True)) < 5e-3
    assert recorded[2] == []
    frozen = next(iter(model.state_dict()))
    assert _apart({frozen: plain[1][frozen]}, {frozen: recorded[1][frozen]}) < 2e-2
    assert _apart(plain[1], recorded[1]) < 0.1


def test_threads_that_pin_batches_do_not_disturb_a_recording() -> None:
    done = threading.Event()

    def pin() -> None:
        while not done.is_set():
            torch.empty(1 << 22, dtype=torch.uint8).pin_memory()

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        model = build_model("erfnet", num_classes=5, in_channels=3, width=4)
        _, _, told = _train(model, _batches([(64, 96)] * 8), graph=True)
    finally:
        done.set()
        thread.join()
    assert told == []


def test_parts_are_added_up_whatever_was_recorded() -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=5, in_channels=3, width=8, levels=3, norm="none").to(DEVICE)
    model = model.to(memory_format=torch.channels_last).train()
    terms = task_of("segment").make_loss_terms("cross_entropy", STATISTICS, None)
    batches = _batches([(64, 96)] * 2)
    found = []
    for graph in (False, True):
        step = compose(model, terms, Plan(**{**PLAN.__dict__, "graph": graph}), bf16=False, tell=print)
        for _ in range(NUM_PLAIN + 2):
            model.zero_grad(set_to_none=True)
            step(batches[0], last=True)
        step(batches[1], last=True)  # on top of a replay's gradients
        found.append({name: each.grad.clone() for name, each in model.named_parameters()})
    assert _apart(found[0], found[1]) < 1e-4


def test_a_step_that_waits_for_the_gpu_is_told_and_goes_on() -> None:
    class Waits(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1.0 if float(x.sum()) > -1e30 else 0.0)

    model = nn.Sequential(
        nn.Dropout2d(0.3), Waits(3, 5, 1)
    )  # whose draws a recording would have had to itself
    losses, _, told = _train(model, _batches([(32, 32)] * 6), graph=True)
    torch.cuda.empty_cache()
    assert len(told) == 1
    assert "cannot be recorded" in told[0]
    assert len(losses) == 6
