"""What fits: predicted from a plan, and measured as it runs."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

from outsize.bench import fits
from outsize.bench.fits import FITS, OUT, may_measure, measured, predicted
from outsize.plan.plan import Recompute, Swap, unplanned
from outsize.plan.way import Way
from outsize.train.made_up import MadeUpStep

_PLAIN = Way("plain", 2**30, 0.5)


def test_what_fits_plainly() -> None:
    row = predicted(replace(unplanned(), step_s=0.5, peak_bytes=7, why=("it fits",)), _PLAIN)
    assert (row["outcome"], row["why"], row["predicted_over_plain"]) == (FITS, "it fits", 0.0)
    assert row["predicted_plain_bytes"] == 2**30


def test_what_fits_by_giving_something_up_has_a_cost() -> None:
    plan = replace(unplanned(), step_s=0.6, why=("more",), recompute=Recompute(), swap=Swap((), 5))
    row = predicted(plan, _PLAIN)
    assert row["outcome"] == "recompute + swap"
    assert row["predicted_over_plain"] == pytest.approx(0.2)
    assert (
        predicted(replace(plan, recompute=None, swap=None, micro_batches=2), _PLAIN)["outcome"]
        == "micro-batches"
    )


def test_no_plan_is_out_of_memory() -> None:
    row = predicted(None, _PLAIN, "3 GiB predicted")
    assert (row["outcome"], row["why"]) == (OUT, "3 GiB predicted")
    assert not may_measure(row, math.inf)


def test_what_would_take_too_long_is_not_measured() -> None:
    now_s = time.perf_counter()
    assert may_measure({"predicted_step_s": 1.0}, now_s + 60)
    assert not may_measure({"predicted_step_s": 10.0}, now_s + 60)


def test_a_step_is_measured_against_its_budget(made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured(made_up, unplanned(), 2**30)
    assert row["measured_outcome"] == "within"
    assert row["step_s"]["repeats"] == 3
    assert measured(made_up, unplanned(), row["peak_bytes"] - 1)["measured_outcome"] == OUT

    def run_out(*_: object, **__: object) -> int:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(fits, "take_turn", run_out)
    assert measured(made_up, unplanned(), 2**30) == {"measured_outcome": OUT}
