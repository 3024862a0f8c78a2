"""The comparison as a whole: budgets from what was seen, a failure is a row, slow ways have fewer turns."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.bench.conftest import BLOCKS

from outsize.bench import memory
from outsize.bench.cap import Cap
from outsize.bench.gauge import Turn
from outsize.bench.memory import Planning, check_budgets, measure_memory
from outsize.errors import JobError, ModelError, PlanError
from outsize.plan.plan import Plan, Recompute
from outsize.progress import Reporter
from outsize.strategies import compiled
from outsize.train.made_up import MadeUpStep

QUIET = Reporter("quiet")
PLAN = Plan("train", 2, 1, peak_bytes=1000, exact=True, why=("because",), step_s=0.01)


def _measure(made_up: MadeUpStep, *names: str, plan_for: Callable[[int], Plan], **how: Any) -> dict[str, Any]:
    planning = Planning(plan_for, plain_bytes=12345678)
    options = {"shares": (0.5,), "rounds": 2, **how}
    return measure_memory(
        made_up, names, options["shares"], BLOCKS, planning, rounds=options["rounds"], reporter=QUIET
    )


def _rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["way"]: each for each in found["rows"]}


def test_all_ways_in_one_run(made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    limits: list[int] = []

    def plan_for(limit_bytes: int) -> Plan:
        limits.append(limit_bytes)
        again = Recompute(blocks=BLOCKS, saved=() if len(limits) == 1 else (("nowhere", 0, 0),))
        return Plan("train", 2, limit_bytes, 1000, exact=True, why=("because",), step_s=0.01, recompute=again)

    names = ("plain", "again", "blocks", "save-on-cpu", "checkpoint", "ours")
    found = _measure(made_up, *names, plan_for=plan_for, shares=(0.95, 0.9), rounds=2)
    rows = _rows(found)
    assert list(rows) == [*names[:-1], "ours-0.95", "ours-0.9"]
    assert [name for name, each in rows.items() if each["failed"]] == ["save-on-cpu"]
    resident, peak = found["resident_bytes"], rows["plain"]["peak_bytes"]
    assert found["plain"] == {**found["plain"], "way": "plain", "peak_bytes": peak, "measured": True}
    budgets = [rows["ours-0.95"]["budget_bytes"], rows["ours-0.9"]["budget_bytes"]]
    assert budgets == [math.floor(resident + share * (peak - resident)) for share in (0.95, 0.9)]
    assert limits == budgets
    # those that budgets are set by are not counted: no other way ran beside them
    assert [len(each["turns"]) for each in rows.values() if each["failed"] is None] == [2] * 6
    assert rows["again"]["peak_bytes"] == peak
    assert rows["checkpoint"]["peak_bytes"] < peak
    # our checkpoint holds a copy of the statistics of norms, torch's counts a batch twice
    assert rows["ours-0.95"]["peak_bytes"] == pytest.approx(rows["checkpoint"]["peak_bytes"], rel=0.02)
    assert rows["blocks"]["peak_bytes"] is None  # compiled code cannot be looked into
    assert rows["blocks"]["ms"] > 0
    assert "1 are not saved" in rows["ours-0.9"]["notes"][0]
    assert found["control"] > 0
    assert all(each["cap_bytes"] is None for each in rows.values())


def test_a_plan_that_is_not_found_is_a_row(made_up: MadeUpStep) -> None:
    def plan_for(_: int) -> Plan:
        raise PlanError("does not fit: found 2, needed 1; take less")

    rows = _rows(_measure(made_up, "plain", "ours", plan_for=plan_for))
    assert rows["ours-0.5"]["failed"] == "does not fit: found 2, needed 1; take less"
    assert rows["plain"]["failed"] is None


def test_out_of_memory_is_a_row_and_leaves_nothing(
    made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(made_up: MadeUpStep, _: Any) -> Any:
        def step(*_: Any, last: bool) -> Any:
            for each in made_up.model.parameters():
                each.grad = torch.zeros_like(each)
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

        return step

    monkeypatch.setitem(
        memory.WAYS, "plain", memory.WAYS["plain"].__class__("plain eager", make, is_plain=True)
    )
    found = _measure(made_up, "plain", "checkpoint", "ours", plan_for=lambda _: PLAN)
    rows = _rows(found)
    assert rows["plain"]["failed"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert rows["checkpoint"]["failed"] is None
    # nothing to measure by: budgets are shares of the peak that is predicted, and nothing is over plain
    assert found["plain"] == {
        "way": None,
        "label": None,
        "ms": None,
        "peak_bytes": 12345678,
        "measured": False,
    }
    resident = found["resident_bytes"]
    assert rows["ours-0.5"]["budget_bytes"] == math.floor(resident + 0.5 * (12345678 - resident))
    assert rows["ours-0.5"]["over_plain"] is None
    with pytest.raises(ModelError, match="no way runs the training step: found OutOfMemoryError"):
        _measure(made_up, "plain", plan_for=lambda _: PLAN)
    assert all(each.grad is None for each in made_up.model.parameters())


def test_slow_ways_have_fewer_turns_and_ours_all(
    made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: Counter[str] = Counter()
    times_ms = {"plain": 10.0, "again": 10.0, "checkpoint": 90.0, "ours-0.5": 90.0}

    def take_turn(made_up: MadeUpStep, entry: Any, number: int) -> None:
        turns[entry.name] += 1
        disturbed = 50.0 if entry.name == "again" and number == 0 else 0.0
        entry.turns[number] = Turn(times_ms[entry.name] + disturbed)

    monkeypatch.setattr(memory, "_take_turn", take_turn)
    found = _measure(made_up, "plain", "again", "checkpoint", "ours", plan_for=lambda _: PLAN, rounds=8)
    # plain: three more, before budgets are set
    assert turns == {"plain": 3 + 8, "again": 8, "checkpoint": 2 + 1, "ours-0.5": 8}
    assert _rows(found)["checkpoint"]["over_plain"] == 9.0
    assert found["control"] == 1.0


def _interrupted(made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch, in_round: int) -> dict[str, Any]:
    turns: Counter[str] = Counter()

    def take_turn(made_up: MadeUpStep, entry: Any, number: int) -> None:
        turns[entry.name] += 1
        if turns["plain"] == 3 + in_round + 1:  # three, before budgets are set
            raise KeyboardInterrupt
        entry.turns[number] = Turn(10.0 + number)

    monkeypatch.setattr(memory, "_take_turn", take_turn)
    return _measure(made_up, "plain", "again", plan_for=lambda _: PLAN, rounds=8)


def test_who_interrupts_has_the_rounds_before(made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _interrupted(made_up, monkeypatch, in_round=3)
    assert found["rounds"] == 3
    assert [list(each["turns"]) for each in found["rows"]] == [[0, 1, 2]] * 2
    assert [each["ms"] for each in found["rows"]] == [11.0, 11.0]


def test_who_interrupts_the_first_round_has_nothing(
    made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(made_up, monkeypatch, in_round=0)


def test_budgets_are_shares() -> None:
    assert check_budgets([0.25, 1.0, 0.25, 0.5]) == (1.0, 0.5, 0.25)
    for bad in (0.0, -0.5, 1.5, math.nan):
        with pytest.raises(JobError, match=r"bad value in --budgets: found .*, needed shares above 0"):
            check_budgets([0.5, bad])


def test_ours_under_a_cap_is_planned_for_it(made_up: MadeUpStep) -> None:
    asked: list[int] = []

    def plan_for(limit_bytes: int) -> Plan:
        asked.append(limit_bytes)
        return PLAN

    cap = Cap("110%", share=1.1)
    found = _measure(made_up, "plain", "ours", plan_for=plan_for, shares=(cap,))
    row = _rows(found)["ours-110%"]
    assert asked == [math.floor(1.1 * found["plain"]["peak_bytes"])]
    assert (row["label"], row["share"]) == ("ours, capped at 110 % of plain", None)
    assert row["budget_bytes"] == asked[0]


@pytest.mark.parametrize("is_found", [True, False])
def test_a_plan_that_takes_more_than_its_budget_on_a_cpu_is_made_again_for_less(
    made_up: MadeUpStep, is_found: bool
) -> None:
    asked: list[int] = []

    def plan_for(limit_bytes: int) -> Plan:
        asked.append(limit_bytes)
        if len(asked) == 1:
            return PLAN  # plain, and so more than is given
        if not is_found:
            raise PlanError("does not fit: found 2, needed 1; take less")
        return replace(PLAN, recompute=Recompute(blocks=BLOCKS))

    row = _rows(_measure(made_up, "plain", "ours", plan_for=plan_for, shares=(0.95,)))["ours-0.95"]
    assert asked == [row["budget_bytes"], math.floor(0.985 * row["budget_bytes"])]
    assert row["failed"] is None
    assert (row["peak_bytes"] <= row["budget_bytes"]) == is_found
    assert bool(row["notes"]) == is_found
    if is_found:
        assert row["notes"][0].startswith("planned for 98.5% of the budget")


def test_only_turns_of_ways_that_run_are_counted(
    made_up: MadeUpStep, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan_for(_: int) -> Plan:
        raise PlanError("does not fit: found 2, needed 1; take less")

    planning, names = Planning(plan_for, 1), ("plain", "again", "save-on-cpu", "ours")
    measure_memory(made_up, names, (0.5, 0.25), BLOCKS, planning, rounds=3, reporter=Reporter("json"))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last = [each for each in events if each["event"] == "progress"][-1]
    assert (last["done"], last["total"]) == (6, 6)
    assert last["ms"] > 0
