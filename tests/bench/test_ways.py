"""Every way to run a step gives the gradients of the plain one, and leaves the model as it was."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.bench.conftest import BLOCKS
from torch import Tensor

from outsize.bench import ways
from outsize.bench.subject import Subject
from outsize.bench.ways import NAMES, OURS, WAYS, choose_ways, ours
from outsize.errors import JobError, PlanError
from outsize.plan.plan import Plan, Recompute
from outsize.strategies import compiled
from outsize.strategies.steps.step import Step
from outsize.strategies.swap.traffic import Meter


def _gradients(subject: Subject, step: Step) -> list[Tensor]:
    torch.manual_seed(1)
    step(subject.batch, last=True)
    found = [each.grad for each in subject.model.parameters()]
    subject.forget()
    assert all("forward" not in vars(each) for each in subject.model.modules())
    return [each for each in found if each is not None]


def _near(ones: list[Tensor], others: list[Tensor], tolerance: float) -> bool:
    assert len(ones) == len(others) > 0
    return all(torch.allclose(*pair, rtol=0, atol=tolerance) for pair in zip(ones, others, strict=True))


def test_checkpointed_equals_plain_and_keeps_less(subject: Subject) -> None:
    plain = _gradients(subject, WAYS["plain"].make(subject, BLOCKS))
    packed: dict[str, int] = {}
    for name in ("plain", "checkpoint"):
        step, sizes = WAYS[name].make(subject, BLOCKS), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each, sizes=sizes: sizes.append(each.nbytes) or each, lambda each: each
        ):
            assert _near(_gradients(subject, step), plain, 0.0)
        packed[name] = sum(sizes)
    assert packed["checkpoint"] < 0.6 * packed["plain"]


@pytest.mark.parametrize("name", ["compile", "blocks-0.5"])
def test_compiled_equals_plain(subject: Subject, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    plain = _gradients(subject, WAYS["plain"].make(subject, BLOCKS))
    step = WAYS[name].make(subject, BLOCKS)
    assert _near(_gradients(subject, step), plain, 1e-6)
    assert WAYS[name].compiles


def test_ours_carries_out_the_plan(subject: Subject) -> None:
    plain = _gradients(subject, WAYS["plain"].make(subject, BLOCKS))
    told: list[str] = []
    key = ("encoder.0.2", 0, 0)
    plan = Plan(
        "train", 2, 1, 1, exact=True, why=(), recompute=Recompute((key, ("nowhere", 0, 0)), BLOCKS[1:2])
    )
    assert _near(_gradients(subject, ours(subject, plan, told.append, Meter())), plain, 0.0)
    assert len(told) == 1
    assert "1 are not saved, the first in nowhere" in told[0]


def test_everything_is_moved_through_host_memory_of_just_that_size(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _gradients(subject, WAYS["plain"].make(subject, BLOCKS))
    monkeypatch.setattr(ways, "_refuse_cpu", lambda *_: None)  # there is a stand-in for its streams
    monkeypatch.setattr(ways, "_AHEAD_BYTES", 0)
    step = WAYS["move-all"].make(subject, BLOCKS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one would say that there is no room
        assert _near(_gradients(subject, step), plain, 0.0)
    assert ways._saved_bytes(subject) > 100_000


def test_what_makes_no_sense_is_refused(subject: Subject) -> None:
    for name in ("save-on-cpu", "move-all"):
        with pytest.raises(PlanError, match="needed a GPU"):
            WAYS[name].make(subject, BLOCKS)
    for name in ("blocks", "checkpoint"):
        with pytest.raises(PlanError, match="no blocks"):
            WAYS[name].make(subject, ())


def test_ways_are_chosen_by_name() -> None:
    assert choose_ways(None) == NAMES
    assert choose_ways(["ours", "checkpoint", "ours"]) == ("plain", "again", "checkpoint", OURS)
    with pytest.raises(JobError, match=r"found 'chekpoint', needed one of plain.*; did you mean checkpoint"):
        choose_ways(["plain", "chekpoint"])
    with pytest.raises(JobError, match="leave --ways out"):
        choose_ways(["zzzzzz"])
