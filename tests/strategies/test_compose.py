"""Steps under a plan: a batch may be split anywhere, also over processes, and its gradients add up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.losses import Weights
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Compile, Offload, Plan, PlannedSwap, Recompute, Swap, Tiling
from outsize.plan.search.mixture import mix
from outsize.strategies.compose import Step, compose
from outsize.strategies.saved.hooks import SavedTensors, recomputable
from outsize.strategies.swap.offload import in_full
from outsize.tasks.segment import count_terms, make_loss_terms

_PLAN = Plan(purpose="train", batch=4, limit_bytes=1, peak_bytes=1, exact=True, why=())


LOSSES = pytest.mark.parametrize(
    ("loss", "weights"),
    [
        ("cross_entropy", None),
        ("cross_entropy", (0.3, 1.0, 5.0)),
        ("focal", None),
        ("focal", (0.3, 1.0, 5.0)),
        ("dice", None),
        ("dice", (0.3, 1.0, 5.0)),
        ("cross_entropy+dice", (0.3, 1.0, 5.0)),
    ],
)


def _model_and_step(
    loss: str, weights: Weights, plan: Plan = _PLAN, norm: str = "group"
) -> tuple[torch.nn.Module, Step]:
    torch.manual_seed(5)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4, norm=norm).double()
    terms = make_loss_terms(loss, BandStatistics((0.0, 0.0), (1.0, 1.0)), weights)

    def in_double(model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return dict(terms(lambda x: model(x.double()), batch))  # type: ignore[arg-type]

    return model, compose(model, in_double, plan, bf16=False)


def _batch(loss: str, weights: Weights, side_px: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4, side_px, side_px), generator=generator).to(torch.uint8)
    labels[0] = IGNORE  # uneven halves: a mean of means would be wrong
    labels[1, :9] = IGNORE
    labels[2] = 1  # nor does every sample have every class
    return Batch(
        images=torch.randn(4, 2, side_px, side_px, generator=generator),
        valid=torch.ones(4, side_px, side_px, dtype=torch.bool),
        targets=ClassRasters(labels),
        totals=count_terms(loss, ClassRasters(labels), weights),
    )


def _gradients(
    parts: list[slice],
    loss: str,
    weights: Weights,
    plan: Plan = _PLAN,
    *,
    norm: str = "group",
    side_px: int = 16,
) -> tuple[list[torch.Tensor], float]:
    model, step = _model_and_step(loss, weights, plan, norm)
    batch = _batch(loss, weights, side_px)
    shares = [share for part in parts for share in step(batch.part(part), last=part is parts[-1]).values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, float(torch.stack(shares).sum())


def _relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    largest = max(float(t.abs().max()) for t in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


@LOSSES
def test_parts_of_a_batch_add_up_to_the_whole(loss: str, weights: Weights) -> None:
    whole, whole_loss = _gradients([slice(0, 4)], loss, weights)
    parts, parts_loss = _gradients([slice(0, 1), slice(1, 4)], loss, weights)
    assert _relative(parts, whole) < 1e-14
    assert abs(parts_loss - whole_loss) < 1e-14


@LOSSES
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 9])
def test_micro_batches_add_up_to_the_batch(loss: str, weights: Weights, micro_batches: int) -> None:
    whole, whole_loss = _gradients([slice(0, 4)], loss, weights)
    parts, parts_loss = _gradients([slice(0, 4)], loss, weights, replace(_PLAN, micro_batches=micro_batches))
    assert _relative(parts, whole) < 1e-14
    assert abs(parts_loss - whole_loss) < 1e-14


def _recomputable(norm: str = "none") -> Recompute:
    """Name all that can be made again, by convolutions, too, and a block besides."""
    model, _ = _model_and_step("cross_entropy", None, norm=norm)
    batch = _batch("cross_entropy", None, side_px=24)
    keys = recomputable(model, lambda: model(batch.images.double()))
    assert keys

    def loss(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(images.double()).square().sum()
        return value

    cost = StepCost(trace_step(model, (4, 2, 24, 24), loss=loss, device="cpu"))
    found = mix(cost, find_recipes(cost, lambda _: 1e-6), lambda _: 1e-6, None, 0).as_recompute()
    assert found is not None
    assert len(found.dear) > 3
    # what is moved is kept, and what a loss saves is another's
    named = [key for key in sorted(keys | set(found.saved)) if key[0]]
    again = [key for key in named if not key[0].startswith(("encoder.0", "pool"))]
    return Recompute(tuple(again), blocks=("bottleneck",), dear=found.dear)


def _movable() -> Swap:
    """What goes into convolutions of the encoder and leaves with the next one, and something that is not there."""
    first, second, last = ("encoder.0.0", 0, 0), ("encoder.0.2", 0, 0), ("bottleneck.0", 0, 0)
    moved = (
        PlannedSwap(last, 1 << 20, None, ("head", 0, 0)),
        PlannedSwap(second, 1 << 20, last, None),
        PlannedSwap(("nowhere", 0, 0), 8, None, None),
        PlannedSwap(first, 1 << 20, second, last),
    )
    return Swap(moved, 64 << 20)


SETTINGS: dict[str, Callable[..., Any]] = {
    "tiles": lambda _: Tiling(core_px=12, halo_before_px=(8, 8), halo_after_px=(8, 8), stride_px=2),
    "micro_batches": lambda _: 3,
    "recompute": _recomputable,
    "swap": lambda _: _movable(),
    "compile": lambda _: Compile(("decoder.0",)),
    "offload": lambda _: Offload(("encoder.0", "bottleneck")),
}
QUICK = ("tiles", "micro_batches", "recompute", "swap")
CHOSEN = [
    names
    for num in range(1, len(SETTINGS) + 1)
    for names in combinations(SETTINGS, num)
    if num in (1, 2, len(SETTINGS)) or set(names) <= set(QUICK)
]


def _plan(names: Collection[str], norm: str) -> Plan:
    """Return the plan with these settings, without those things that the planner does not put together."""
    plan = replace(_PLAN, **{name: SETTINGS[name](norm) for name in names})
    if plan.recompute is not None and plan.compile is not None:  # nobody looks into what is compiled
        outside = [key for key in plan.recompute.saved if not key[0].startswith(plan.compile.paths)]
        plan = replace(plan, recompute=replace(plan.recompute, saved=tuple(outside)))
    if plan.recompute is not None and plan.offload is not None:  # a convolution would wait for its weights
        plan = replace(plan, recompute=replace(plan.recompute, dear=()))
    return plan


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to torch's own operations."""
    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", "aot_eager")


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    yield
    if dist.is_initialized():  # weights on the host make a world of one process
        dist.destroy_process_group()


def _trained(parts: list[slice], plan: Plan = _PLAN, *, norm: str) -> dict[str, list[torch.Tensor]]:
    """Train for three steps, the first of which is watched and the others read, with a look at the model in between.

    A batch of several parts has its gradients added up.
    """
    model, step = _model_and_step("cross_entropy", None, plan, norm)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch, losses = _batch("cross_entropy", None, 51), []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            losses += step(batch.part(part), last=part is parts[-1]).values()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch.images.double())
        model.train()
    # by name: weights on the host come in another order
    named = sorted(model.named_parameters())
    gradients = in_full({name: each.grad for name, each in named if each.grad is not None})
    weights = in_full({name: each.detach() for name, each in named})
    buffers = [each.double() for each in model.buffers()]
    return {
        "losses": losses,
        "gradients": [*gradients.values()],
        "weights": [*weights.values()],
        "buffers": buffers,
    }


def _apart(ours: dict[str, list[torch.Tensor]], theirs: dict[str, list[torch.Tensor]]) -> float:
    return max(_relative(ours[each], theirs[each]) for each in theirs if theirs[each])


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("names", CHOSEN, ids="-".join)
def test_any_strategies_together_equal_the_plain_step(names: tuple[str, ...]) -> None:
    plan = _plan(names, "none")
    found = _apart(_trained([slice(0, 4)], plan, norm="none"), _trained([slice(0, 4)], norm="none"))
    # a CPU replays to the bit; parts are added up in another order
    assert found <= (0.0 if set(names) <= {"recompute", "swap"} else 1e-12)


WHOLE = [names for names in CHOSEN if not {"tiles", "micro_batches"} & set(names)]


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("parts", [[slice(0, 4)], [slice(0, 1), slice(1, 4)]], ids=["whole", "accumulated"])
@pytest.mark.parametrize("names", WHOLE, ids="-".join)
def test_statistics_of_batches_are_those_of_the_plain_step(
    names: tuple[str, ...], parts: list[slice]
) -> None:
    plain = _trained(parts, norm="batch")
    assert plain["buffers"]
    found = _apart(_trained(parts, _plan(names, "batch"), norm="batch"), plain)
    # compiled code and gradients that are added up on the host round otherwise
    assert found <= (1e-12 if {"compile", "offload"} & set(names) else 0.0)


def test_each_part_of_a_step_recomputes_what_the_plan_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Remembered(SavedTensors):
        @contextmanager
        def forward(self) -> Iterator[None]:
            with super().forward():
                yield
            made.append(self.stats)

    monkeypatch.setattr("outsize.strategies.steps.recompute.SavedTensors", Remembered)
    recompute = replace(_recomputable(), blocks=())
    plan = replace(_PLAN, tiles=SETTINGS["tiles"](""), micro_batches=3, recompute=recompute)
    model, step = _model_and_step("cross_entropy", None, plan, norm="none")
    step(_batch("cross_entropy", None, side_px=23), last=True)
    assert len(made) == 2 * 4  # samples 2 + 2, each in 2 x 2 tiles
    for stats in made:
        assert stats is not None
        assert stats.num_recomputed == len(recompute.saved)
        assert not stats.unmet
        assert not stats.refused
    assert not any(module._forward_hooks for module in model.modules())


def test_the_loss_is_the_mean_over_labelled_pixels() -> None:
    model, step = _model_and_step("cross_entropy", None)
    batch = _batch("cross_entropy", None)
    share = step(batch, last=True)["cross_entropy"]
    logits = model(batch.images.double())
    mean = torch.nn.functional.cross_entropy(logits, batch.targets.labels.long(), ignore_index=IGNORE)
    torch.testing.assert_close(share, mean)


def _half(rank: int, rendezvous: str, out: str, cases: list[tuple[str, Weights]]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    found = []
    for loss, weights in cases:
        gradients, _ = _gradients([slice(2 * rank, 2 * rank + 2)], loss, weights)
        for gradient in gradients:
            dist.all_reduce(gradient)
        found.append(gradients)
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()


def test_two_processes_with_half_a_batch_each_add_up(tmp_path: Path) -> None:
    out, cases = tmp_path / "gradients.pt", list(LOSSES.args[1])  # one start of processes for all of them
    mp.spawn(_half, args=(str(tmp_path / "rendezvous"), str(out), cases), nprocs=2)
    for found, (loss, weights) in zip(torch.load(out, weights_only=True), cases, strict=True):
        whole, _ = _gradients([slice(0, 4)], loss, weights)
        assert _relative(found, whole) < 1e-14, loss
