"""A step of a detector in half the memory: planned from shapes, as large as foretold, and equal to the plain one."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tasks.detect.painted import STATISTICS
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import BoxList
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing import trace_step
from outsize.models import build_model
from outsize.models.dense import FCOS_NAME
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan
from outsize.plan.search.mixture import mix
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepOp
from outsize.strategies.compose import compose
from outsize.tasks.detect import terms

_PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
_SIZE = (192, 320)


def _batch() -> Batch:
    torch.manual_seed(3)
    lists = [
        BoxList(_SIZE, np.array([[8 * n, 10, 160, 150]], np.float32), np.array([n % 2])) for n in range(2)
    ]
    targets = lists[0].stack(lists)
    return Batch(
        torch.randn(2, 3, *_SIZE),
        torch.ones(2, *_SIZE, dtype=torch.bool),
        targets,
        terms.count_terms("", targets),
    )


def _op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12


def _outcome(model: nn.Module, plan: Plan) -> tuple[list[Tensor], int]:
    """Return losses, gradients and buffers of a step, and what it held at its peak beside what was there before."""
    model, batch, told = copy.deepcopy(model).train(), _batch(), []
    step = compose(model, terms.make_loss_terms("", STATISTICS), plan, bf16=False, tell=told.append)
    torch.manual_seed(7)
    with LiveBytes() as live:
        shares = step(batch, last=True)
    assert told == []
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [*shares.values(), *gradients, *model.buffers()], int(live.peak_bytes)


@pytest.mark.long
@pytest.mark.parametrize("way", ["recompute", "swap"])
@pytest.mark.parametrize(
    ("name", "options"), [("fastbox", {"encoder": "vgg16_bn", "inner_width": 64}), (FCOS_NAME, {})]
)
def test_a_step_in_half_the_memory_is_the_plain_one(way: str, name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=2, in_channels=3, **options)
    facts = trace_step(model, (2, 3, *_SIZE), loss=terms.loss_on_shapes(""), device="cpu")
    cost = StepCost(facts)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    plain, plain_bytes = _outcome(model, _PLAIN)
    assert plain_bytes == pytest.approx(cost.peak_bytes() - lasting_bytes, rel=0.05)
    gradient_bytes = sum(each.nbytes for each in model.parameters())
    budget_bytes = lasting_bytes + gradient_bytes + (plain_bytes - gradient_bytes) // 2
    recipes = find_recipes(cost, _op_s)
    link = Link(1e13, 1e13, 0.0) if way == "swap" else None
    found = mix(cost, recipes if way == "recompute" else [], _op_s, link, budget_bytes, least_bytes=4096)
    ours, held_bytes = _outcome(model, replace(_PLAIN, recompute=found.as_recompute(), swap=found.swap))
    assert held_bytes == pytest.approx(found.peak_bytes - lasting_bytes, rel=0.05)
    assert held_bytes < 0.9 * plain_bytes
    for one, other in zip(ours, plain, strict=True):
        largest = max(1.0, float(other.abs().max()))
        assert float((one.double() - other.double()).abs().max()) < 1e-5 * largest
