"""A step that ran out of memory is repeated as if nothing had happened."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import PlanError
from outsize.measure.memory import ran_out
from outsize.strategies.compose import Step, Terms
from outsize.strategies.steps.recover import Shortage, recovering


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = torch.dropout(self.norm(self.conv(images)), 0.5, train=True)
        return found


def _batch() -> Batch:
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    shape = (2, 8, 8)
    return Batch(
        images, torch.ones(shape, dtype=torch.bool), ClassRasters(torch.zeros(shape, dtype=torch.uint8)), {}
    )


def _plain(model: nn.Module, before_backward: Callable[[Tensor], None] = lambda _: None) -> Step:
    def step(batch: Batch, *, last: bool) -> Terms:
        loss = model(batch.images).square().sum()
        before_backward(loss)
        loss.backward()
        before_backward(loss)
        return {"loss": loss.detach()}

    return step


def _out_of_memory(_: Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")


def _train(model: nn.Module, step: Step, num_steps: int = 3) -> list[float]:
    losses = []
    for number in range(num_steps):
        torch.manual_seed(number)
        losses.append(float(step(_batch(), last=True)["loss"]))
        with torch.no_grad():
            for each in model.parameters():
                assert each.grad is not None
                each.sub_(0.01 * each.grad)
                each.grad = None
    return losses


def _net() -> _Net:
    torch.manual_seed(0)
    return _Net().train()


@pytest.mark.parametrize("fails_at", [1, 2])  # before backward, and behind it with all gradients there
def test_a_training_that_ran_out_ends_with_the_same_bits(fails_at: int) -> None:
    plain, ours = _net(), _net()
    seen: list[Shortage] = []
    calls = 0

    def fail(loss: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls in (fails_at, fails_at + 4):  # of the first and of a later attempt
            _out_of_memory(loss)

    def tighten(shortage: Shortage) -> Step:
        seen.append(shortage)
        assert all(each.grad is None for each in ours.parameters())
        return _plain(ours, fail)

    found = _train(ours, recovering(_plain(ours, fail), ours, tighten))
    assert found == _train(plain, _plain(plain))
    assert len(seen) == 2
    assert seen[0].available_bytes > 0
    for (name, one), other in zip(ours.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_nothing_of_the_attempt_is_held_while_a_plan_is_sought() -> None:
    model = _net()
    losses: list[weakref.ref[Tensor]] = []

    def fail(loss: Tensor) -> None:
        losses.append(weakref.ref(loss))
        _out_of_memory(loss)

    def tighten(_: Shortage) -> Step:
        assert losses[0]() is None
        return _plain(model)

    gc.disable()
    try:
        recovering(_plain(model, fail), model, tighten)(_batch(), last=True)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [RuntimeError("shapes cannot be multiplied"), ValueError("no")])
def test_other_errors_pass(error: Exception) -> None:
    model = _net()

    def fail(_: Tensor) -> None:
        raise error

    def tighten(_: Shortage) -> Step:
        raise AssertionError

    with pytest.raises(type(error), match=str(error)):
        recovering(_plain(model, fail), model, tighten)(_batch(), last=True)


def test_what_the_cpu_says_is_understood() -> None:
    model = _net()
    seen: list[Shortage] = []

    def fail(_: Tensor) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...\nmore")

    def tighten(shortage: Shortage) -> Step:
        seen.append(shortage)
        return _plain(model)

    recovering(_plain(model, fail), model, tighten)(_batch(), last=True)
    assert seen[0].wanted_bytes == 0
    assert seen[0].message.endswith("you tried ...")


def test_a_step_that_begins_with_gradients_is_refused() -> None:
    model = _net()
    next(iter(model.parameters())).grad = torch.zeros(2, 1, 3, 3)
    with pytest.raises(RuntimeError, match="gradients"):
        recovering(_plain(model), model, lambda _: _plain(model))(_batch(), last=True)


class _OnGpu:
    """Stands for a batch whose pictures are on a GPU."""

    def __init__(self) -> None:
        self.images = SimpleNamespace(device=torch.device("cuda"))


def test_steps_whose_memory_lies_in_pieces_go_on_by_a_tighter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, runs = [0], []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_alloc_retries": closed[0]})
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 90)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)

    def step(name: str, num_closed: int) -> Step:
        def run(_: Batch, *, last: bool) -> Terms:
            closed[0] += num_closed
            runs.append(name)
            return {}

        return run

    seen: list[Shortage] = []
    tighter = [step("second", 1), step("third", 0)]

    def tighten(shortage: Shortage) -> Step:
        seen.append(shortage)
        if not tighter:
            raise PlanError("no tighter way is left")
        return tighter.pop(0)

    model = nn.Linear(1, 1)
    ours = recovering(step("first", 2), model, tighten)
    for _ in range(150):
        ours(_OnGpu(), last=True)  # type: ignore[arg-type]
    # looked at every 20 steps; the first look only says how many there were before
    assert [runs.count(name) for name in ("first", "second", "third")] == [40, 40, 70]
    assert [(each.wanted_bytes, each.available_bytes, each.num_closed) for each in seen] == [
        (90, 100, 40),
        (90, 100, 20),
    ]

    ours = recovering(step("last", 2), model, tighten)
    for _ in range(100):
        ours(_OnGpu(), last=True)  # type: ignore[arg-type]
    assert runs.count("last") == 100  # nothing tighter: it goes on, and asks no more
    assert len(seen) == 3


def test_a_tighter_step_does_not_take_gradients_away_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed, changes = [0], []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_alloc_retries": closed[0]})
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 90)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)
    model = nn.Linear(1, 1)

    def step(_: Batch, *, last: bool) -> Terms:
        closed[0] += 1
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        return {}

    def tighten(shortage: Shortage) -> Step:
        changes.append(shortage)
        model.zero_grad(set_to_none=True)  # they lay in the memory of a recording, which is let go
        return step

    ours = recovering(step, model, tighten)
    for _ in range(100):
        ours(_OnGpu(), last=True)  # type: ignore[arg-type]
        assert all(each.grad is not None for each in model.parameters())
        model.zero_grad(set_to_none=True)
    assert changes


def test_a_step_that_failed_is_gone_before_a_tighter_one_is_made() -> None:
    class Slab:
        """Stands for the host memory of a step."""

    model, slab = _net(), Slab()
    alive = weakref.ref(slab)

    def make(slab: Slab) -> Step:
        def fails(batch: Batch, *, last: bool) -> Terms:
            assert slab is not None
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")

        return fails

    seen = []

    def tighten(_: Shortage) -> Step:
        seen.append(alive())
        return _plain(model)

    ours = recovering(make(slab), model, tighten)
    del slab
    ours(_batch(), last=True)
    assert seen == [None]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_what_says_that_there_is_no_memory(text: str, is_one: bool) -> None:
    assert ran_out(RuntimeError(text)) == is_one
