"""Steps under a plan: a batch may be split anywhere, also over processes, and its gradients add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.strategies.together import (
    ANY,
    GRAPHS,
    RECORDED,
    SIDE_PX,
    WHOLE,
    Seen,
    build,
    combined,
    marked,
    plan_of,
    watch,
)

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.losses import Weights
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.ranks import World
from outsize.strategies.compose import Step, compose
from outsize.strategies.cudagraph.capture import NUM_PLAIN
from outsize.strategies.offload import in_full
from outsize.tasks.segment.terms import count_terms, make_loss_terms

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


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What strategies really do."""
    yield watch(monkeypatch)
    if dist.is_initialized():  # weights on the host make a world of one process
        dist.destroy_process_group()


Trained = dict[str, list[torch.Tensor]]


def _trained(
    seen: Seen, parts: list[slice], plan: Plan, norm: str, num_steps: int
) -> tuple[Trained, torch.nn.Module]:
    """Train for some steps, the first of which is watched and the others read, with a look at the model in between.

    A batch of several parts has its gradients added up.
    """
    model = build(norm)
    step = seen.compose(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch, losses = _batch("cross_entropy", None, SIDE_PX), []
    for _ in range(num_steps):
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
    found = {
        "losses": losses,
        "gradients": [*gradients.values()],
        "weights": [*weights.values()],
        "buffers": buffers,
    }
    return found, model


@cache
def _plainly(parts: tuple[tuple[int, int], ...], norm: str, num_steps: int) -> Trained:
    return _trained(Seen(), [slice(*each) for each in parts], _PLAN, norm, num_steps)[0]


def _apart(ours: Trained, theirs: Trained) -> float:
    return max(_relative(ours[each], theirs[each]) for each in theirs if theirs[each])


def _compared(seen: Seen, names: tuple[str, ...], norm: str, parts: tuple[tuple[int, int], ...]) -> None:
    plan = plan_of(names, norm, parts[0][1])
    num_steps = NUM_PLAIN + 3 if "graph" in names else 3
    ours, model = _trained(seen, [slice(*each) for each in parts], plan, norm, num_steps)
    seen.has(names, plan, model, norm, parts[0][1])
    found = _apart(ours, _plainly(parts, norm, num_steps))
    # a CPU replays to the bit; parts, compiled code and fused layers add up in another order
    assert found <= (0.0 if set(names) <= {"recompute", "swap", *GRAPHS} else 1e-12)


_FROM_FSDP = "ignore:FSDP2-wrapped module .* returned a view"  # which nobody changes in place


@pytest.mark.filterwarnings(_FROM_FSDP)
@pytest.mark.parametrize("names", marked(combined(ANY, *GRAPHS)))
def test_any_strategies_together_equal_the_plain_step(names: tuple[str, ...], seen: Seen) -> None:
    _compared(seen, names, "none", ((0, 4),))


@pytest.mark.filterwarnings(_FROM_FSDP)
@pytest.mark.parametrize("names", marked(combined(WHOLE, *GRAPHS)))
def test_statistics_of_batches_are_those_of_the_plain_step(names: tuple[str, ...], seen: Seen) -> None:
    _compared(seen, names, "batch", ((0, 4),))


@pytest.mark.filterwarnings(_FROM_FSDP)
@pytest.mark.parametrize("names", marked(combined(WHOLE)))
def test_accumulated_parts_have_the_statistics_of_plain_ones(names: tuple[str, ...], seen: Seen) -> None:
    _compared(seen, names, "batch", ((0, 2), (2, 4)))


@pytest.mark.parametrize("names", [(each, graph) for graph in GRAPHS for each in ANY if each not in RECORDED])
def test_what_cannot_be_recorded_with_others_is_not(names: tuple[str, ...]) -> None:
    assert not plan_of(names, "none").is_recordable


def test_the_loss_is_the_mean_over_labelled_pixels() -> None:
    model, step = _model_and_step("cross_entropy", None)
    batch = _batch("cross_entropy", None)
    share = step(batch, last=True)["cross_entropy"]
    logits = model(batch.images.double())
    mean = torch.nn.functional.cross_entropy(logits, batch.targets.labels.long(), ignore_index=IGNORE)
    torch.testing.assert_close(share, mean)


def _half(world: World, cases: list[tuple[str, Weights]]) -> list[list[torch.Tensor]]:
    found = []
    for loss, weights in cases:
        gradients, _ = _gradients([slice(2 * world.rank, 2 * world.rank + 2)], loss, weights)
        for gradient in gradients:
            dist.all_reduce(gradient)
        found.append(gradients)
    return found


def test_two_processes_with_half_a_batch_each_add_up(gang: Any) -> None:
    cases = list(LOSSES.args[1])
    for found, (loss, weights) in zip(gang.run(2, _half, cases)[0], cases, strict=True):
        whole, _ = _gradients([slice(0, 4)], loss, weights)
        assert _relative(found, whole) < 1e-14, loss
