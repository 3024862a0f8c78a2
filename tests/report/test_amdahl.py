"""What times went to: Amdahl's law from what was shared already, parts that add up, a timeline without gaps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outsize.accounts import Account
from outsize.progress import Activity
from outsize.report.amdahl import Part, of_this_training, parts_of, spans_of, speedup
from outsize.report.timeline import Span


def _account(verb: str, began_s: float, seconds: float, *activities: tuple[str, float, float]) -> Account:
    done = tuple(Activity(name, 1, ((start, end),), end - start) for name, start, end in activities)
    return Account(verb, began_s, seconds, seconds, done)


def test_a_part_that_was_on_8_gpus_gains_by_16_what_twice_as_many_gain() -> None:
    """The published 2.19 times divides by 16 what 8 GPUs had taken."""
    assert speedup(0.585, 1.9985) == pytest.approx(1.41, abs=0.005)
    assert speedup(0.58, 16 * 0.994) == pytest.approx(2.19, abs=0.005)
    assert speedup(0.58, math.inf) == pytest.approx(2.38, abs=0.005)
    assert speedup(0.0, 8) == 1
    assert speedup(1.0, math.inf) == math.inf


def test_parts_add_up_to_the_whole() -> None:
    train = _account("train", 0, 10, ("plan", 0, 1), ("train", 2, 9))
    train = replace(train, activities=(train.activities[0], replace(train.activities[1], parallel=8)))
    again = replace(_account("train", 100, 5, ("train", 0, 5)), goes_on=True)
    found = parts_of([train, again])
    assert found == [
        Part("train", "plan", 1, 1),
        Part("train", "train", 12, 8),
        Part("train", "other", 2, 1),
    ]
    assert sum(each.seconds for each in found) == train.seconds + again.seconds


def test_times_in_which_nobody_worked_are_cut_out_and_others_may_overlap() -> None:
    first = _account("check", 1000, 10, ("check", 2, 10))
    second = _account("predict", 5000, 10, ("predict", 0, 10))
    beside = _account("evaluate", 5004, 10, ("evaluate", 0, 10))
    assert spans_of([first, second, beside]) == [
        Span("check: check", 2, 10),
        Span("check: other", 0, 2),
        Span("predict: predict", 10, 20),
        Span("evaluate: evaluate", 14, 24),
    ]


def test_a_training_begun_anew_leaves_what_was_said_of_the_one_before_behind() -> None:
    verbs = ["check", "plan", "train", "predict", "check", "train", "train", "report"]
    accounts = [_account(verb, number, 1) for number, verb in enumerate(verbs)]
    accounts[6] = replace(accounts[6], goes_on=True)
    assert [(each.verb, each.began_s) for each in of_this_training(accounts)] == [
        ("plan", 1),
        ("check", 4),
        ("train", 5),
        ("train", 6),
        ("report", 7),
    ]
