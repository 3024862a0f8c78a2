"""Turns: what is timed, what is weighed, and that a cap is set before and lifted after, come what may."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from outsize.bench.gauge import NUM_TIMED, NUM_WARM, Turn, take_turn, weigh_on_cpu
from outsize.measure.memory import sweep

GPU = torch.device("cuda", 0)


def test_a_turn_on_a_cpu_warms_up_and_times() -> None:
    runs: list[int] = []
    turn = take_turn(lambda: runs.append(1), torch.device("cpu"), cap_bytes=1)
    assert len(runs) == NUM_WARM["cpu"] + NUM_TIMED["cpu"]
    assert turn.ms > 0
    assert turn == Turn(turn.ms)


def test_what_lives_at_once_is_weighed_beside_what_was_there() -> None:
    def run() -> None:
        kept = torch.zeros(1000)
        for _ in range(3):
            kept = kept + 1

    assert weigh_on_cpu(run, lasting_bytes=10) == 10 + 2 * 4000


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of a GPU that is not there."""
    found: list[Any] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            found.append("event")

        def elapsed_time(self, _: Event) -> float:
            return 20.0

    fakes: dict[str, Any] = {
        "device": lambda _: nullcontext(),
        "synchronize": lambda _=None: found.append("wait"),
        "empty_cache": lambda: found.append("empty"),
        "mem_get_info": lambda _: (10, 1000),
        "set_per_process_memory_fraction": lambda share, _: found.append(share),
        "reset_peak_memory_stats": lambda _: found.append("reset"),
        "memory_allocated": lambda _: 7,
        "max_memory_allocated": lambda _: 100,
        "max_memory_reserved": lambda _: 120,
        "memory_stats": lambda _: {"num_alloc_retries": found.count("step")},
        "Event": Event,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return found


def test_a_turn_on_a_gpu_is_under_its_cap(calls: list[Any]) -> None:
    turn = take_turn(lambda: calls.append("step"), GPU, cap_bytes=250)
    assert turn == Turn(20.0 / NUM_TIMED["cuda"], 100, 120, 7, NUM_TIMED["cuda"])
    warm, timed = ["step"] * NUM_WARM["cuda"], ["step"] * NUM_TIMED["cuda"]
    assert calls == ["wait", "empty", 0.25, "reset", *warm, "event", *timed, "event", "wait", 1.0]


def test_without_a_cap_all_may_be_used(calls: list[Any]) -> None:
    take_turn(lambda: None, GPU)
    assert [each for each in calls if isinstance(each, float)] == [1.0, 1.0]
    calls.clear()
    take_turn(lambda: None, GPU, cap_bytes=5000)  # more than there is
    assert [each for each in calls if isinstance(each, float)] == [1.0, 1.0]


def test_the_cap_is_lifted_after_a_failure(calls: list[Any]) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        take_turn(fail, GPU, cap_bytes=100)
    assert [each for each in calls if isinstance(each, float)] == [0.1, 1.0]
    sweep(GPU)
    assert calls[-1] == "empty"
