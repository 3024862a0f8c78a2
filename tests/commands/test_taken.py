"""The memory of steps is told once, before a validation adds its own."""

from __future__ import annotations

import pytest
import torch

from outsize.commands.taken import memory_taken
from outsize.plan.plan import Plan
from outsize.progress import Reporter

PLAN = Plan("train", 2, limit_bytes=4 << 30, peak_bytes=2 << 30, exact=True, why=())


def test_it_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 << 30)
    tell = memory_taken(torch.device("cuda", 0), PLAN, Reporter("json"))
    assert tell() == {"memory": {"steps_bytes": 3 << 30, "predicted_bytes": 2 << 30}}
    assert tell() == {}
    said = capsys.readouterr()
    assert "steps took at most 3.0 GiB of the GPU's memory, 2.0 GiB predicted" in said.out + said.err


def test_a_cpu_has_no_such_counter() -> None:
    assert memory_taken(torch.device("cpu"), PLAN, Reporter("quiet"))() == {}
