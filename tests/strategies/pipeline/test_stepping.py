"""Stages over ranks leave what one process does: loss, gradients, statistics of norms."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ranks.gang import Gang
from tests.strategies.pipeline.nets import NETS, Way, alone, apart, short, staged

_NEAR = 1e-12
_CHAIN: dict[int, tuple[int, ...]] = {2: (0, 1), 3: (0, 1, 2), 4: (0, 1, 2, 3)}
_ROUND, _FOLDED, _DEEP = (
    (0, 1, 0, 1),
    (0, 1, 0),
    (0, 1, 2, 1, 0),
)  # interleaved; encoder and decoder of a level
_SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
_AGAIN: dict[str, Any] = {"recomputes": True}


def _equal(gang: Gang, name: str, ways: list[Way], size: int, num_whole: int | None = None) -> None:
    answers = gang.run(size, staged, name, ways)
    for number, (_, num_micro, _, _) in enumerate(ways):
        whole = alone(name, num_whole or num_micro)
        assert apart(whole, [each[number] for each in answers]) < _NEAR, ways[number]


def test_every_schedule_and_placement_leaves_what_one_process_does(gang: Gang) -> None:
    ways: list[Way] = [(_ROUND, 3, each, {}) for each in _SCHEDULES]
    ahead = {"order": {"ahead": 3, "longest_first": True}}
    ways += [(_FOLDED, 4, each, ahead) for each in ("1f1b", "zero-bubble")]
    ways += [(_FOLDED, 4, "1f1b", {}), (_FOLDED, 2, "zero-bubble", _AGAIN), (_CHAIN[2], 1, "1f1b", {})]
    _equal(gang, "odd", ways, 2)


def test_skips_pass_over_whole_stages_and_the_batch_is_the_whole(gang: Gang) -> None:
    ways: list[Way] = [(_CHAIN[3], 4, "1f1b", {}), (_DEEP, 4, "1f1b", _AGAIN), (_CHAIN[3], 2, "gpipe", {})]
    _equal(gang, "unet", ways, 3, num_whole=1)


def test_batch_norm_is_that_of_micro_batches_and_of_all_replicas(gang: Gang) -> None:
    ways: list[Way] = [
        (_CHAIN[2], 2, "1f1b", {}),
        (_CHAIN[2], 2, "zero-bubble", _AGAIN),
        (_CHAIN[2], 1, "1f1b", {}),
    ]
    _equal(gang, "unet-batch", ways, 4)  # two replicas of two stages


def test_replicas_of_stages_draw_as_one_process(gang: Gang) -> None:
    _equal(gang, "odd", [(_CHAIN[2], 2, "1f1b", {}), (_CHAIN[2], 1, "gpipe", _AGAIN)], 4)


def test_all_ranks_repeat_a_step_that_one_stage_had_no_memory_for(gang: Gang) -> None:
    answers = gang.run(2, short, "odd")
    assert apart(alone("odd", 2), [left for left, _ in answers]) < _NEAR
    assert [plans for _, plans in answers] == [["every stage again"]] * 2


@pytest.mark.long
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("num", [2, 3, 4])
def test_any_network_in_any_number_of_stages(gang: Gang, name: str, num: int) -> None:
    ways: list[Way] = [(_CHAIN[num], 4, each, more) for each in _SCHEDULES for more in ({}, _AGAIN)]
    ways += [(tuple(range(num)) * 2, 4, each, {}) for each in _SCHEDULES]
    ways += [((*range(num), *reversed(range(num - 1))), 4, each, _AGAIN) for each in _SCHEDULES]
    _equal(gang, name, ways, num)


@pytest.mark.long
@pytest.mark.parametrize("name", ["unet", "frozen"])
def test_without_norms_of_the_batch_the_whole_batch_is_what_counts(gang: Gang, name: str) -> None:
    _equal(gang, name, [(_CHAIN[4], each, "1f1b", {}) for each in (2, 3, 4)], 4, num_whole=1)


@pytest.mark.long
@pytest.mark.parametrize("name", NETS)
def test_two_replicas_of_two_stages_are_one_process(gang: Gang, name: str) -> None:
    ways: list[Way] = [(_CHAIN[2], 2, each, {}) for each in _SCHEDULES]
    _equal(gang, name, [*ways, (_FOLDED, 2, "1f1b", {}), (_CHAIN[2], 1, "1f1b", {})], 4)
