"""Real steps on the CPU: classes of operations, the host's time, and what convolutions give back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from outsize.measure.learning import look, look_at
from outsize.measure.learning.look import lower_quartile
from outsize.measure.learning.operations import Operations
from outsize.plan.times import (
    ARITHMETIC,
    CLASSES,
    GRADIENTS,
    NORM_GRADIENTS,
    NORMS,
)

_CPU = torch.device("cpu")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))


@pytest.fixture
def step(model: nn.Module) -> Callable[[], None]:
    images = torch.randn(2, 3, 32, 32)

    def run() -> None:
        model(images).sum().backward()

    return run


def test_every_class_that_runs_is_seen_forward_and_backward(step: Callable[[], None]) -> None:
    seen = look_at(step, _CPU)
    assert set(seen.kernels_s) == set(CLASSES)
    for name in (ARITHMETIC, GRADIENTS, NORMS, NORM_GRADIENTS):
        assert seen.kernels_s[name] > 0
    assert seen.kernels_s["optimizer"] == 0
    assert seen.usable_share is None  # there is no allocator to be asked
    assert seen.step_s > 0


def test_a_product_of_backward_is_no_forward_arithmetic() -> None:
    weights, batch = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    assert look._profiled(lambda: batch @ weights, _CPU)[GRADIENTS] == 0
    both = look._profiled(lambda: (batch @ weights).sum().backward(), _CPU)
    assert both[ARITHMETIC] > 0
    assert both[GRADIENTS] > 0


def test_on_a_cpu_a_step_is_all_the_devices(step: Callable[[], None]) -> None:
    device_s, host_s = look.device_and_host_s(step, _CPU)
    assert device_s > 0
    assert host_s == 0


def test_long_steps_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    def ticks(pace_s: float) -> Iterator[float]:
        return itertools.count(0.0, pace_s)

    monkeypatch.setattr(look, "_profiled", lambda run, device: dict.fromkeys(CLASSES, 0.0))
    for pace_s, num_timed in ((1e-3, look.NUM_TIMED), (10.0, 2)):
        clock = ticks(pace_s)
        monkeypatch.setattr(look, "time", SimpleNamespace(perf_counter=lambda clock=clock: next(clock)))
        runs: list[int] = []
        look_at(lambda runs=runs: runs.append(1), _CPU)
        assert len(runs) == look.NUM_WARM + num_timed


def test_what_neighbours_take_is_not_counted() -> None:
    assert lower_quartile([9.0, 1.0, 8.0, 2.0, 3.0, 7.0, 6.0, 5.0]) == 3.0
    assert lower_quartile([4.0]) == 4.0


@pytest.mark.parametrize(("filled", "share"), [(50, 0.75), (88, 0.88), (100, 0.95)])
def test_the_share_of_memory_that_tensors_fill_keeps_within_reason(
    monkeypatch: pytest.MonkeyPatch, filled: int, share: float
) -> None:
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: filled)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 100)
    assert look._usable_share(lambda: None, torch.device("cuda")) == share


def test_what_convolutions_take_and_give_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter([100, 130, 130, 180, 200, 200])  # before and after each of three
    most = iter([150, 190, 260])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: next(held))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: next(most))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    seen = Operations(torch.device("cuda"))
    with torch.autograd.set_multithreading_enabled(False), seen:
        # the first needs no gradient of its input, and one gradient is enough here
        for parameter in (*net[0].parameters(), *net[1].parameters()):
            parameter.requires_grad_(False)
        net(torch.randn(2, 3, 4, 4)).sum().backward()
    assert seen.workspaces == {"convolution": [20, 10], "convolution_backward, backward": [60]}
