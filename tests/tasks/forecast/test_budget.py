"""A step through time in half of its activations: planned from shapes, as large as foretold, equal to the plain one."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.frames import NumberGrids
from outsize.data.statistics import BandStatistics
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan
from outsize.plan.search.mixture import mix
from outsize.plan.step import StepOp
from outsize.strategies.compose import compose
from outsize.tasks.forecast import terms

_PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
_NUM_IN, _NUM_OUT, _SIDE = 4, 3, 32
_STATISTICS = BandStatistics((500.0,) * _NUM_IN, (800.0,) * _NUM_IN)


def _batch() -> Batch:
    rng = np.random.default_rng(0)
    images, numbers = (
        torch.from_numpy(rng.integers(0, 4000, (2, num, _SIDE, _SIDE)).astype(np.int16))
        for num in (_NUM_IN, _NUM_OUT)
    )
    grids = NumberGrids(numbers, ("", ""))
    valid = torch.ones(2, _SIDE, _SIDE, dtype=torch.bool)
    return Batch(images, valid, grids, terms.count_terms("rain", grids))


def _op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12


def _outcome(model: nn.Module, plan: Plan) -> tuple[list[Tensor], int]:
    """Return losses and gradients of a step, and what it held at its peak beside what was there before."""
    model, batch, told = copy.deepcopy(model).train(), _batch(), []
    step = compose(model, terms.make_loss_terms("rain", _STATISTICS), plan, bf16=False, tell=told.append)
    with LiveBytes() as live:
        shares = step(batch, last=True)
    assert told == []
    return [*shares.values(), *(each.grad for each in model.parameters() if each.grad is not None)], int(
        live.peak_bytes
    )


@pytest.mark.long
def test_recompute_through_time() -> None:
    torch.manual_seed(0)
    model = build_model(
        "convlstm", num_classes=_NUM_OUT, in_channels=_NUM_IN, num_in=_NUM_IN, width=8, layers=2, stride=2
    )
    facts = trace_step(model, (2, _NUM_IN, _SIDE, _SIDE), loss=terms.loss_on_shapes("rain"), device="cpu")
    cost = StepCost(facts)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    plain, plain_bytes = _outcome(model, _PLAIN)
    assert plain_bytes == pytest.approx(cost.peak_bytes() - lasting_bytes, rel=0.05)
    gradient_bytes = sum(each.nbytes for each in model.parameters())
    budget_bytes = lasting_bytes + gradient_bytes + (plain_bytes - gradient_bytes) // 2
    found = mix(cost, find_recipes(cost, _op_s), _op_s, None, budget_bytes, least_bytes=1024)
    ours, held_bytes = _outcome(model, replace(_PLAIN, recompute=found.as_recompute()))
    assert found.peak_bytes <= budget_bytes
    assert held_bytes == pytest.approx(found.peak_bytes - lasting_bytes, rel=0.01)
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(one, other)
