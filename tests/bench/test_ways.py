"""Every way to run a step gives the gradients of the plain one, and leaves the model as it was."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.bench.conftest import BLOCKS
from torch import Tensor

from outsize.bench import ways
from outsize.bench.ways import NAMES, OURS, WAYS, choose_ways
from outsize.errors import JobError, PlanError
from outsize.plan.plan import Recompute, unplanned
from outsize.strategies import compiled
from outsize.strategies.step import Step
from outsize.train.made_up import MadeUpStep


def _gradients(made_up: MadeUpStep, step: Step) -> list[Tensor]:
    torch.manual_seed(1)
    step(made_up.batch, last=True)
    found = [each.grad for each in made_up.model.parameters()]
    made_up.forget()
    assert all("forward" not in vars(each) for each in made_up.model.modules())
    return [each for each in found if each is not None]


def _near(ones: list[Tensor], others: list[Tensor], tolerance: float) -> bool:
    assert len(ones) == len(others) > 0
    return all(torch.allclose(*pair, rtol=0, atol=tolerance) for pair in zip(ones, others, strict=True))


def test_checkpointed_equals_plain_and_keeps_less(made_up: MadeUpStep) -> None:
    plain = _gradients(made_up, WAYS["plain"].make(made_up, BLOCKS))
    packed: dict[str, int] = {}
    for name in ("plain", "checkpoint"):
        step, sizes = WAYS[name].make(made_up, BLOCKS), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each, sizes=sizes: sizes.append(each.nbytes) or each, lambda each: each
        ):
            assert _near(_gradients(made_up, step), plain, 0.0)
        packed[name] = sum(sizes)
    assert packed["checkpoint"] < 0.6 * packed["plain"]


@pytest.mark.parametrize("name", ["compile", "blocks-0.5"])
def test_compiled_equals_plain(made_up: MadeUpStep, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    plain = _gradients(made_up, WAYS["plain"].make(made_up, BLOCKS))
    step = WAYS[name].make(made_up, BLOCKS)
    assert _near(_gradients(made_up, step), plain, 1e-6)
    assert WAYS[name].compiles


def test_ours_carries_out_the_plan(made_up: MadeUpStep) -> None:
    plain = _gradients(made_up, WAYS["plain"].make(made_up, BLOCKS))
    told: list[str] = []
    key = ("encoder.0.2", 0, 0)
    plan = unplanned(recompute=Recompute((key, ("nowhere", 0, 0)), BLOCKS[1:2]))
    assert _near(_gradients(made_up, made_up.composed(plan, tell=told.append)), plain, 0.0)
    assert len(told) == 1
    assert "1 are not saved, the first in nowhere" in told[0]


def test_everything_is_moved_through_host_memory_of_just_that_size(
    made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _gradients(made_up, WAYS["plain"].make(made_up, BLOCKS))
    monkeypatch.setattr(ways, "_refuse_cpu", lambda *_: None)  # there is a stand-in for its streams
    monkeypatch.setattr(ways, "_AHEAD_BYTES", 0)
    step = WAYS["move-all"].make(made_up, BLOCKS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one would say that there is no room
        assert _near(_gradients(made_up, step), plain, 0.0)
    assert ways._saved_bytes(made_up) > 100_000


def test_what_makes_no_sense_is_refused(made_up: MadeUpStep) -> None:
    for name in ("save-on-cpu", "move-all"):
        with pytest.raises(PlanError, match="needed a GPU"):
            WAYS[name].make(made_up, BLOCKS)
    for name in ("blocks", "checkpoint"):
        with pytest.raises(PlanError, match="no blocks"):
            WAYS[name].make(made_up, ())


def test_ways_are_chosen_by_name() -> None:
    assert choose_ways(None) == NAMES
    assert choose_ways(["ours", "checkpoint", "ours"]) == ("plain", "again", "checkpoint", OURS)
    with pytest.raises(JobError, match=r"found 'chekpoint', needed one of plain.*; did you mean checkpoint"):
        choose_ways(["plain", "chekpoint"])
    with pytest.raises(JobError, match="leave --ways out"):
        choose_ways(["zzzzzz"])
