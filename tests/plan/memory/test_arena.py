"""What an allocator holds: gaps are reused by the smallest that fits, and count where nothing fits them."""

from __future__ import annotations

import itertools
import random

import pytest

from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.memory import arena
from outsize.plan.step import StepFacts, StepOp, Storage

MIB = 2**20


def held_bytes(cost: StepCost, changed: Changed) -> int:
    return arena.Arena(cost).held_bytes(changed)


def _cost(*lives: tuple[float, int, int], num_ops: int = 8) -> StepCost:
    """Return a step of storages by their MiB, birth and end."""
    ops = tuple(
        StepOp(index, "op", "", 0, index >= num_ops // 2, (), (), 0, 1, "float32") for index in range(num_ops)
    )
    storages = tuple(
        Storage(index, int(size * MIB), born, dies, "activation", dies)
        for index, (size, born, dies) in enumerate(lives)
    )
    return StepCost(StepFacts(ops, storages, (), training=True))


def test_what_comes_and_goes_is_held_in_whole_pages_beside_what_lasts() -> None:
    assert held_bytes(_cost((7, -1, 8), (30, 0, 2), (10, 1, 3)), NOTHING) == (7 + 40) * MIB
    assert held_bytes(_cost((30, 0, 2), (11, 1, 3)), NOTHING) == 60 * MIB


def test_a_gap_is_taken_again_but_not_by_more_than_it_is() -> None:
    fits = _cost((40, 0, 2), (20, 1, 6), (40, 3, 5))
    assert held_bytes(fits, NOTHING) == 60 * MIB
    too_large = _cost((40, 0, 2), (20, 1, 6), (60, 3, 5))
    assert held_bytes(too_large, NOTHING) == 120 * MIB
    assert too_large.peak_bytes() == 80 * MIB


def test_gaps_side_by_side_are_one_and_the_smallest_that_fits_is_taken() -> None:
    assert held_bytes(_cost((20, 0, 2), (20, 0, 3), (20, 0, 6), (40, 4, 6)), NOTHING) == 60 * MIB
    # 20 goes into the gap of 20, so that the one of 40 is there for the last
    several = _cost((40, 0, 2), (20, 0, 7), (20, 0, 2), (20, 0, 7), (20, 3, 7), (40, 4, 7))
    assert held_bytes(several, NOTHING) == 140 * MIB - 40 * MIB


def test_small_ones_lie_apart() -> None:
    assert held_bytes(_cost((0.5, 0, 7), (20, 1, 2), (1, 0, 3)), NOTHING) == 22 * MIB


def test_what_a_plan_changes_is_followed() -> None:
    cost = _cost((40, 0, 8), (20, 1, 3), (60, 3, 5))
    assert held_bytes(cost, NOTHING) == 100 * MIB
    away = Changed(twice={0: (2, 6)}, passing={6: 80 * MIB})
    assert held_bytes(cost, away) == 120 * MIB  # 80 on the way to what comes back at 6
    assert held_bytes(cost, Changed(twice={0: (2, 6)})) == 60 * MIB  # where 40 and 20 lay


def test_no_gap_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_PAGE_BYTES", 1)
    chance = random.Random(0)
    area = arena._Area()
    placed: dict[int, int] = {}
    for _ in range(2000):
        if placed and chance.random() < 0.5:
            address = chance.choice(list(placed))
            area.give(address, placed.pop(address))
        else:
            size = chance.randint(1, 9)
            placed[area.take(size)] = size
        taken = sorted(placed.items())
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(taken))
        assert sum(area._sizes.values()) + sum(placed.values()) == area.end
        assert sorted((size, address) for address, size in area._sizes.items()) == area._by_size


def test_it_is_known_early_that_a_plan_holds_too_much_and_asked_again_it_is_the_same() -> None:
    rng = random.Random(2)
    lives = []
    for _ in range(60):
        born, dies = sorted(rng.sample(range(40), 2))
        lives.append((rng.choice([0.5, 3, 20, 45]), born, dies))
    cost = _cost(*lives, num_ops=40)
    kept = arena.Arena(cost)
    for _ in range(30):
        twice, passing = {}, {}
        for index in rng.sample(range(60), 12):
            _, born, dies = lives[index]
            if dies - born > 2:
                twice[index] = (born + 1, dies - 1)
        passing[rng.randrange(40)] = 9 * MIB
        changed = Changed(twice=twice, passing=passing)
        alone = held_bytes(cost, changed)
        assert kept.held_bytes(changed) == alone
        assert kept.held_bytes(changed, alone) == alone
        assert alone >= kept.held_bytes(changed, 0.6 * alone) > 0.6 * alone
    assert kept.held_bytes(NOTHING) == held_bytes(cost, NOTHING)
