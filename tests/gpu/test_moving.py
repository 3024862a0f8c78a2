"""On a GPU: steps that move tensors to host memory are those that keep them, for a thousand steps and no byte more."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan, Swap
from outsize.plan.search.mixture import mix
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepOp
from outsize.strategies.compose import Step, Terms, compose
from outsize.strategies.cudagraph.capture import Recordings
from outsize.strategies.swap.traffic import Meter

DEVICE = torch.device("cuda", 0)
SHAPE = (4, 3, 128, 128)
PLAIN = Plan("train", 4, limit_bytes=1, peak_bytes=1, exact=True, why=())
LINK = Link(50e9, 50e9)
FEW_BYTES = 64 * 1024  # so that this small net has much to move


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def _net() -> nn.Module:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=3, levels=4, width=16, upsampling="transposed")
    return model.to(DEVICE).to(memory_format=torch.channels_last).train()


def _terms(model: nn.Module, batch: Batch) -> Terms:
    # torch's own loss of pictures adds up in any order
    wanted = F.one_hot(batch.targets.labels.long(), 3).movedim(-1, 1)
    return {"loss": -(F.log_softmax(model(batch.images).float(), 1) * wanted).sum()}


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4, 128, 128), generator=generator, dtype=torch.uint8)
    images = torch.randn(SHAPE, generator=generator).contiguous(memory_format=torch.channels_last)
    valid = torch.ones(labels.shape, dtype=torch.bool)
    return Batch(images, valid, ClassRasters(labels), {"loss": float(labels.numel())}).to(DEVICE)


def _on_shapes(model: nn.Module, images: Tensor) -> Tensor:
    labels = torch.zeros((len(images), *images.shape[2:]), dtype=torch.uint8, device=images.device)
    wanted = F.one_hot(labels.long(), 3).movedim(-1, 1)
    return -(F.log_softmax(model(images).float(), 1) * wanted).sum()


def _op_s(op: StepOp) -> float:
    return op.moved_bytes / 2e12


def _planned(model: nn.Module, share: float, *, recompute: bool, bf16: bool = False) -> Plan:
    cost = StepCost(trace_step(model, SHAPE, loss=_on_shapes, bf16=bf16))
    lasting_bytes = sum(each.size_bytes for each in cost.facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + share * (cost.peak_bytes() - lasting_bytes)
    recipes = find_recipes(cost, _op_s) if recompute else []
    found = mix(cost, recipes, _op_s, LINK, budget_bytes, least_bytes=FEW_BYTES)
    assert found.swap is not None
    return replace(PLAIN, swap=found.swap, recompute=found.as_recompute())


def _train(model: nn.Module, step: Step, num_steps: int) -> list[Tensor]:
    """Return losses, the last gradients, weights and buffers."""
    batch, losses = _batch(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for number in range(num_steps):
        torch.manual_seed(number)
        optimizer.zero_grad(set_to_none=True)
        losses += step(batch, last=True).values()
        optimizer.step()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [each.detach().clone() for each in (*losses, *gradients, *model.parameters(), *model.buffers())]


@pytest.mark.parametrize("everything", [False, True], ids=["planned", "everything"])
def test_the_same_bits_as_plain(everything: bool) -> None:
    model, meter = _net(), Meter()
    plain, again = copy.deepcopy(model), copy.deepcopy(model)
    plan = _planned(model, 0.5, recompute=False)
    plan = replace(plan, swap=Swap((), 1 << 30, 8 << 20)) if everything else plan
    expected = _train(plain, compose(plain, _terms, PLAIN, bf16=False), 6)
    for one, other in zip(_train(again, compose(again, _terms, PLAIN, bf16=False), 6), expected, strict=True):
        assert torch.equal(one, other), "else nothing could be said"
    told: list[str] = []
    step = compose(model, _terms, plan, bf16=False, tell=told.append, meter=meter)
    for one, other in zip(_train(model, step, 6), expected, strict=True):
        assert torch.equal(one, other)
    assert told == []
    counted = meter.read()
    print(f"\n{counted}")
    assert counted is not None
    assert counted.num_out > 6 * 5
    assert counted.num_full == counted.num_unmet == counted.num_changed == 0
    assert counted.num_timed == 1
    assert counted.hidden_share is not None
    if not everything:
        assert counted.most_pinned_bytes == pytest.approx(counted.planned_pinned_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("recompute", "paged"), [(False, False), (True, False), (True, True)], ids=["moved", "mixed", "paged"]
)
def test_a_recorded_step_moves_and_makes_again_as_the_step_itself(recompute: bool, paged: bool) -> None:
    model, meter, recordings = _net(), Meter(), Recordings()
    called, again = copy.deepcopy(model), copy.deepcopy(model)
    plan = _planned(model, 0.5, recompute=recompute)
    expected = _train(called, compose(called, _terms, plan, bf16=False), 12)
    unsure = _apart(_train(again, compose(again, _terms, plan, bf16=False), 12), expected)
    told: list[str] = []
    recorded = replace(plan, graph=True, paged=paged)
    step = compose(model, _terms, recorded, bf16=False, tell=told.append, meter=meter, recordings=recordings)
    apart = _apart(_train(model, step, 12), expected)
    print(f"\nrecorded {apart:.1e} from called, two called {unsure:.1e} from each other")
    assert told == []
    assert apart <= max(1e-4, 3 * unsure)
    counted = meter.read()
    assert counted is not None
    assert counted.num_forwards == 12  # that of a corner, before it was recorded, is none of the training
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info()[0]
    recordings.let_go()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free_bytes
    step(_batch(), last=True)  # recorded again


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    pairs = [(one.double(), other.double()) for one, other in zip(ours, theirs, strict=True)]
    return max(float((one - other).norm() / other.norm().clamp(min=1e-6)) for one, other in pairs)


def test_a_thousand_steps_without_growth() -> None:
    model, meter = _net(), Meter()
    plan = _planned(model, 0.5, recompute=True, bf16=True)
    told: list[str] = []
    step = compose(model, _terms, plan, bf16=True, meter=meter, tell=told.append)
    batch = _batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    seen = []
    for number in range(1000):
        optimizer.zero_grad(set_to_none=True)
        step(batch, last=True)
        optimizer.step()
        if number % 100 == 99:
            torch.cuda.synchronize()
            counted = meter.read()
            assert counted is not None
            gc.collect()
            num_tensors = sum(isinstance(each, Tensor) for each in gc.get_objects())
            device = (
                torch.cuda.memory_allocated(),
                torch.cuda.memory_reserved(),
                torch.cuda.max_memory_allocated(),
            )
            seen.append(
                (*device, counted.most_pinned_bytes, counted.pinned_bytes, counted.num_out, num_tensors)
            )
    print(f"\nallocated, reserved, peak, pinned, pinned now, moved out, tensors: {seen[0]} and {seen[-1]}")
    print(told)
    assert len(set(seen[3:])) == 1  # every 200 steps one is watched; the first time that may need a new place
    assert {each[0] for each in seen} == {seen[0][0]}
    assert seen[0][4] == 0
