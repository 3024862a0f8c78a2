"""Work in a process of its own: its result comes back, and why there is none."""

from __future__ import annotations

import os
import time

import pytest
import torch

from outsize.planning.trying.child import NoAnswer, TookTooLong, run_in_child


def _doubled(given: torch.Tensor) -> tuple[torch.Tensor, int]:
    return 2 * given, os.getpid()


def _fails(given: str) -> None:
    raise RuntimeError(f"no room for {given}\nand more lines")


def _ends(given: int) -> None:
    os._exit(given)


def test_the_result_of_another_process_comes_back() -> None:
    doubled, process = run_in_child(_doubled, torch.arange(3))
    assert doubled.tolist() == [0, 2, 4]
    assert process != os.getpid()


def _sleeps(given: float) -> None:
    time.sleep(given)


def test_what_takes_too_long_is_ended() -> None:
    ticks: list[None] = []
    now_s = iter(range(0, 100, 10))
    with pytest.raises(TookTooLong, match=r"no answer from another process in 25\.0 s"):
        run_in_child(
            _sleeps, 1e6, patience_s=25.0, tick=lambda: ticks.append(None), clock=lambda: next(now_s)
        )
    assert ticks


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(NoAnswer, match=r"^RuntimeError: no room for it$"):
        run_in_child(_fails, "it")
    with pytest.raises(NoAnswer, match="ended without a word"):
        run_in_child(_ends, 3)
    with pytest.raises(NoAnswer, match="cannot be sent"):
        run_in_child(_doubled, lambda: None)  # type: ignore[arg-type]
