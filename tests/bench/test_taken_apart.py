"""A trace read back as spans and parts; waits provoked for real, and judged."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outsize.bench.taken_apart import (
    KERNELS,
    STEP,
    TO_DEVICE,
    WAIT,
    TakenApart,
    parts_of,
    rates_of,
    run_steps,
    spans_of,
    time_making,
)
from outsize.bench.verdict import Around, judge
from outsize.data.feeding import prefetch
from outsize.measurement import Figure

_CPU = torch.device("cpu")


def _event(category: str, name: str, start_ms: float, end_ms: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": 5e6 + 1e3 * start_ms,
        "dur": 1e3 * (end_ms - start_ms),
        "args": args,
    }


def _on_gpu(*more: dict[str, Any]) -> TakenApart:
    """One step of 10 ms: a wait of 2, kernels of 4 in two pieces, gaps for the rest."""
    events = [
        {"ph": "M", "name": "process_name"},
        _event("user_annotation", WAIT, 0, 2),
        _event("user_annotation", STEP, 2, 10),
        _event("cpu_op", "aten::conv2d", 2, 3),
        _event("kernel", "conv", 3, 5),
        _event("kernel", "conv beside it", 4, 5),
        _event("kernel", "relu", 7, 9),
        *more,
    ]
    spans, moved = spans_of(events)
    return TakenApart(tuple(spans), 1, Figure(0.01, 0, 1), Figure(0.002, 0, 1), moved[TO_DEVICE], 0)


def test_each_moment_of_a_gpu_counts_once() -> None:
    found = _on_gpu(_event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 4.5, 6, bytes=3_000_000))
    assert found.spans[0].start_s == 0.0
    parts = parts_of(found, swaps=False)
    assert (parts.step_s, parts.waiting_s) == (0.01, 0.002)
    assert parts.compute_s == pytest.approx(0.004)
    assert parts.copying_s == pytest.approx(0.001)  # what kernels do not cover
    assert parts.gap_s == pytest.approx(0.003)
    assert sum(parts.shares().values()) == pytest.approx(1.0)
    assert rates_of(found)[TO_DEVICE] == pytest.approx(2e9)
    assert rates_of(found)["device to host"] is None
    swapped = parts_of(found, swaps=True)
    assert (swapped.copying_s, swapped.stall_s) == (0.0, pytest.approx(0.001))


def test_ranks_are_waited_for_by_name() -> None:
    parts = parts_of(_on_gpu(_event("kernel", "ncclDevKernel_AllReduce", 5, 7)), swaps=False)
    assert parts.communication_s == pytest.approx(0.002)
    assert parts.compute_s == pytest.approx(0.004)


def test_a_profiler_that_slows_steps_down_is_taken_out() -> None:
    slow = _on_gpu()
    found = TakenApart(slow.spans, 1, Figure(0.006, 0, 1), Figure(0.002, 0, 1), 0, 0)
    parts = parts_of(found, swaps=False)
    assert parts.compute_s == pytest.approx(0.002)
    assert parts.gap_s == pytest.approx(0.002)


def _trained(make: Callable[[int], object], workers: int, trace: Path) -> tuple[TakenApart, Around]:
    """Run steps of a few ms on batches that threads make, as a training does."""

    def batches() -> Iterator[Any]:
        yield from prefetch(make, range(1000), num_threads=workers, num_ahead=2 * workers)

    def step(_: object) -> None:
        torch.ones(64, 64) @ torch.ones(64, 64)

    source = batches()
    found = run_steps(source, step, trace, _CPU, num_warm=2 * workers + 2, num_timed=4, num_profiled=2)
    source.close()  # type: ignore[attr-defined]
    made = time_making(make)
    return found, Around("CPU", 8, workers, 16, made.wall_s, made.computing_s)


def test_a_slow_reader_is_found(tmp_path: Path) -> None:
    found, around = _trained(lambda _: time.sleep(0.05), 2, tmp_path / "trace.json")
    parts = parts_of(found, swaps=False)
    assert judge(parts, around).cause == "slow reader"
    assert parts.waiting_s > parts.compute_s
    kinds = {each.kind for each in found.spans}
    assert {WAIT, STEP} <= kinds
    assert KERNELS not in kinds
    # a trace as Perfetto and chrome://tracing read it
    tree = json.loads((tmp_path / "trace.json").read_text())
    assert any(each.get("name") == STEP and each["ph"] == "X" for each in tree["traceEvents"])


def test_too_few_workers_are_found(tmp_path: Path) -> None:
    data = bytes(2**20)

    def make(_: int) -> None:
        for _ in range(30):
            hashlib.sha256(data).digest()

    found, around = _trained(make, 1, tmp_path / "trace.json")
    verdict = judge(parts_of(found, swaps=False), around)
    assert verdict.cause == "too few workers"
    assert "raise train.workers from 1 to" in verdict.sentence


def _step(*spans: tuple[str, float, float], swaps: bool = False, **around: Any) -> str:
    """Judge one step of 100 ms as a GPU's trace has it: kernels, copies, and what is in neither."""
    names = {
        "kernel": ("kernel", "sm90_conv", 0),
        "to device": ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 40_000_000),
        "to host": ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 40_000_000),
    }
    events = [_event("user_annotation", WAIT, 0, 1), _event("user_annotation", STEP, 1, 101)]
    for kind, start_ms, end_ms in spans:
        category, name, size = names[kind]
        events.append(_event(category, name, 1 + start_ms, 1 + end_ms, bytes=size))
    found, moved = spans_of(events)
    apart = TakenApart(tuple(found), 1, Figure(0.101, 0, 1), Figure(0.001, 0, 1), moved[TO_DEVICE], 0)
    rate = rates_of(apart)[TO_DEVICE]
    known = {"making_s": 0.01, "making_cpu_s": 0.01, "link_share": None if rate is None else rate / 55e9}
    return judge(parts_of(apart, swaps=swaps), Around("GPU", 8, 4, 16, **{**known, **around})).cause


_BUSY = [("kernel", 10 * each, 10 * each + 9.8) for each in range(10)]
_SMALL = [
    ("kernel", float(each), each + 0.3) for each in range(100)
]  # 0.3 ms in each, and the host behind it


def test_causes_that_a_gpu_alone_shows() -> None:
    """Timelines as a trace records them: the copy stream throttled, tensors that come too late, kernels too small."""
    assert _step(*_BUSY) == "compute-bound"
    assert _step(*_BUSY, twice_s=0.199) == "compute-bound"
    assert _step(*_BUSY, twice_s=0.12) == "batch too small"
    slow = [("to device", 0.0, 40.0), *(each for each in _BUSY if each[1] >= 40)]
    assert _step(*slow) == "slow link"
    beside = [("to device", 0.0, 40.0), *_BUSY]  # hidden by kernels: no harm
    assert _step(*beside) == "compute-bound"
    late = [
        *(each for each in _BUSY if not 40 <= each[1] < 70),
        ("to host", 40.0, 55.0),
        ("to device", 55.0, 70.0),
    ]
    assert _step(*late, swaps=True) == "swap stall"
    assert _step(*_SMALL, records=True) == "launch-bound"
    assert _step(*_SMALL, twice_s=0.102) == "launch-bound"
    assert _step(("kernel", 0.0, 99.0), ("to device", 40.0, 55.0), swaps=True) == "compute-bound"
