"""What real steps teach: factors, times of operations, and what is remembered of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outsize.measure import remembered
from outsize.measure.learning import SeenStep, recall_or_learn, taught_by
from outsize.measure.learning.operations import SeenOperations
from outsize.measure.tracing.recorder import record
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


def test_a_clock_that_was_taught_tells_the_step_it_was_taught_by(
    step: Callable[[], None], model: nn.Module
) -> None:
    ops = record(step, model).ops
    kernels_s = dict.fromkeys(CLASSES, 0.0) | {
        ARITHMETIC: 0.5,
        GRADIENTS: 1.0,
        NORMS: 0.25,
        NORM_GRADIENTS: 0.125,
    }
    seen = SeenStep(kernels_s, host_s=3.0, step_s=5.0, usable_share=0.9)
    learnt = taught_by(seen, ops, _CLOCK, batch=2, side_px=32)
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
    seen = SeenStep(kernels_s, 99.0, 99.0, None, device_s * total_s, operations)  # the host has no say
    learnt = taught_by(seen, ops, _CLOCK, batch=2, side_px=32)
    assert [pace for found in learnt.paces.values() for pace in found] == pytest.approx([by] * len(ops))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remembered, "cache_folder", lambda: tmp_path)
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
def test_a_broken_file_is_made_again(folder: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    recall_or_learn(["a"], _CPU, lambda: _LEARNT)
    (path,) = folder.iterdir()
    path.write_text(json.dumps(spoil(asdict(_LEARNT))), encoding="utf-8")
    fresh = replace(_LEARNT, batch=8)
    assert recall_or_learn(["a"], _CPU, lambda: fresh) == fresh
