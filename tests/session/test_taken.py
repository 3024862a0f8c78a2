"""The memory of steps is told once, before a validation adds its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.session.taken import memory_taken

PLAN = Plan("train", 2, limit_bytes=4 << 30, peak_bytes=2 << 30, exact=True, why=())


def test_it_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 << 30)
    tell = memory_taken(torch.device("cuda", 0), lambda: PLAN, Reporter("json"))
    found = {"steps_bytes": 3 << 30, "predicted_bytes": 2 << 30, "replanned": False}
    assert tell() == {"memory": found}
    assert tell() == {}
    said = capsys.readouterr()
    assert "steps took at most 3.0 GiB of the GPU's memory, 2.0 GiB predicted" in said.out + said.err


def test_what_is_predicted_is_that_of_the_plan_that_took_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 << 30)
    plans = [PLAN]
    tell = memory_taken(torch.device("cuda", 0), lambda: plans[-1], Reporter("json"))
    plans.append(replace(PLAN, peak_bytes=1 << 30))
    found = {"steps_bytes": 3 << 30, "predicted_bytes": 1 << 30, "replanned": True}
    assert tell() == {"memory": found}
    said = capsys.readouterr()
    assert "1.0 GiB predicted for the plan that took over" in said.out + said.err


def test_a_cpu_has_no_such_counter() -> None:
    assert memory_taken(torch.device("cpu"), lambda: PLAN, Reporter("quiet"))() == {}
