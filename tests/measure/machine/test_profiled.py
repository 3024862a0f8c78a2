"""What real steps teach, on the CPU: classes of operations, factors, the host's time, and what is remembered."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from outsize.measure.machine import profiled
from outsize.measure.machine.operations import Operations, SeenOperations
from outsize.measure.machine.profiled import learn, look_at, lower_quartile, name_of, recall_or_learn
from outsize.measure.tracing.record import record
from outsize.plan import seen as seen_before
from outsize.plan.machines import find_machine
from outsize.plan.times import (
    ARITHMETIC,
    CLASSES,
    GRADIENTS,
    NORM_GRADIENTS,
    NORMS,
    Clock,
    Learnt,
    host_calls,
)

_CPU = torch.device("cpu")
_CLOCK = Clock(find_machine("h200").rates, tf32=False, overlaps=False)
_LEARNT = Learnt({NORMS: 2.0}, 1e-5, None, 2, 32)


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
    assert seen.host_s >= 0
    assert seen.step_s > 0


def test_a_product_of_the_way_back_is_no_forward_arithmetic() -> None:
    weights, batch = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    assert profiled._profiled(lambda: batch @ weights, _CPU)[GRADIENTS] == 0
    both = profiled._profiled(lambda: (batch @ weights).sum().backward(), _CPU)
    assert both[ARITHMETIC] > 0
    assert both[GRADIENTS] > 0


def test_a_clock_that_was_taught_tells_the_step_it_was_taught_by(
    step: Callable[[], None], model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = record(step, model).ops
    kernels_s = dict.fromkeys(CLASSES, 0.0) | {
        ARITHMETIC: 0.5,
        GRADIENTS: 1.0,
        NORMS: 0.25,
        NORM_GRADIENTS: 0.125,
    }
    seen = profiled.Seen(kernels_s, host_s=3.0, step_s=5.0, usable_share=0.9)
    monkeypatch.setattr(profiled, "look_at", lambda run, device: seen)
    learnt = learn(step, ops, _CLOCK, _CPU, batch=2, side_px=32)
    assert (learnt.usable_share, learnt.batch, learnt.side_px) == (0.9, 2, 32)
    taught = _CLOCK.taught(learnt)
    told = taught.by_class(ops)
    assert {name: told[name] for name in (ARITHMETIC, GRADIENTS, NORMS)} == pytest.approx(
        {name: kernels_s[name] for name in (ARITHMETIC, GRADIENTS, NORMS)}
    )
    assert taught.rates.host_op_s * sum(map(host_calls, ops)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("device_s", "by"), [(0.0, 1.0), (0.5, 1 / 1.15), (0.95, 0.95), (1.1, 1.1), (9.0, 1.15)]
)
def test_times_of_operations_are_stretched_to_that_of_the_device(
    step: Callable[[], None], model: nn.Module, device_s: float, by: float
) -> None:
    ops = [op for op in record(step, model).ops if op.kind == "convolution"]
    modelled_s = {
        group: [_CLOCK.op_s(op) for op in found] for group, found in seen_before.grouped(ops).items()
    }
    total_s = sum(map(sum, modelled_s.values()))
    kernels_s = dict.fromkeys(CLASSES, 0.0)
    operations = SeenOperations(seconds=modelled_s)
    seen = profiled.Seen(kernels_s, 99.0, 99.0, None, device_s * total_s, operations)  # the host has no say
    learnt = profiled.taught_by(seen, ops, _CLOCK, batch=2, side_px=32)
    assert [pace for found in learnt.paces.values() for pace in found] == pytest.approx([by] * len(ops))


def test_on_a_cpu_a_step_is_all_the_devices(step: Callable[[], None]) -> None:
    device_s, host_s = profiled.device_and_host_s(step, _CPU)
    assert device_s > 0
    assert host_s == 0


def test_long_steps_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    def ticks(pace_s: float) -> Iterator[float]:
        return itertools.count(0.0, pace_s)

    monkeypatch.setattr(profiled, "_profiled", lambda run, device: dict.fromkeys(CLASSES, 0.0))
    for pace_s, num_timed in ((1e-3, profiled.NUM_TIMED), (10.0, 2)):
        clock = ticks(pace_s)
        monkeypatch.setattr(profiled, "time", SimpleNamespace(perf_counter=lambda clock=clock: next(clock)))
        runs: list[int] = []
        look_at(lambda runs=runs: runs.append(1), _CPU)
        assert len(runs) == profiled.NUM_WARM + num_timed


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
    assert profiled._usable_share(lambda: None, torch.device("cuda")) == share


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(profiled, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_what_was_learnt_is_remembered_by_its_names(folder: Path) -> None:
    made = iter([_LEARNT, replace(_LEARNT, batch=4)])
    assert recall_or_learn(["a", "b"], _CPU, lambda: next(made)) == _LEARNT
    assert recall_or_learn(["a", "b"], _CPU, lambda: next(made)) == _LEARNT
    other = recall_or_learn(["a", "c"], _CPU, lambda: next(made))
    assert other is not None
    assert other.batch == 4
    assert len(list(folder.iterdir())) == 2


def test_nothing_learnt_is_not_remembered(folder: Path) -> None:
    assert recall_or_learn(["a"], _CPU, lambda: None) is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tree: None,
        lambda tree: [],
        lambda tree: tree | {"more": 1},
        lambda tree: tree | {"factors": [1]},
        lambda tree: tree | {"factors": {"norms": "2"}},
        lambda tree: tree | {"factors": {"unknown": 2.0}},
        lambda tree: tree | {"host_op_s": float("nan")},
        lambda tree: tree | {"host_op_s": -1.0},
        lambda tree: tree | {"host_op_s": 1e9},
        lambda tree: tree | {"factors": {"norms": 1e300}},
        lambda tree: tree | {"paces": {"norms": ["1"]}},
        lambda tree: tree | {"paces": {"norms": [float("inf")]}},
        lambda tree: tree | {"workspaces": {"convolution": [2**60]}},
        lambda tree: tree | {"batch": 0},
        lambda tree: tree | {"batch": "2"},
        lambda tree: tree | {"usable_share": 1.5},
        lambda tree: tree | {"usable_share": "much"},
    ],
)
def test_a_broken_file_is_made_anew(folder: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    recall_or_learn(["a"], _CPU, lambda: _LEARNT)
    (path,) = folder.iterdir()
    path.write_text(json.dumps(spoil(asdict(_LEARNT))), encoding="utf-8")
    fresh = replace(_LEARNT, batch=8)
    assert recall_or_learn(["a"], _CPU, lambda: fresh) == fresh


def test_models_that_differ_have_other_names(model: nn.Module) -> None:
    before = name_of(model)
    assert name_of(model) == before
    model[0].weight.requires_grad_(False)
    frozen = name_of(model)
    wider = name_of(nn.Sequential(nn.Conv2d(3, 9, 3)))
    assert len({before, frozen, wider}) == 3


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
