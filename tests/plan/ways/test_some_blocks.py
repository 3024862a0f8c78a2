"""As many blocks and parts of blocks as a budget asks for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

import pytest

from outsize.plan.cost import StepCost
from outsize.plan.step import StepFacts, StepOp
from outsize.plan.ways.blocks import lies_in, list_blocks
from outsize.plan.ways.some_blocks import some_blocks

Chain = Callable[..., StepFacts]


def _op_s(op: StepOp) -> float:
    return 1e-6 * (1 + (op.kind == "convolution"))


def _budget(cost: StepCost, share: float) -> float:
    return cost.lasting_bytes + share * (cost.peak_bytes() - cost.lasting_bytes)


@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
def test_the_budget_is_kept_and_used(chain: Chain, share: float) -> None:
    cost = StepCost(chain(1, 256, num_layers=24))
    found = some_blocks(cost, _op_s, (), _budget(cost, share))
    peaks = [cost.peak_bytes(each.changed) for each in found]
    partly = [peak for peak in peaks if peak > _budget(cost, share)]
    assert partly == peaks[len(peaks) - len(partly) :]  # the last, of which a mix makes the rest
    assert partly
    peaks = peaks[: -len(partly)]
    assert peaks[0] <= _budget(cost, share)
    assert peaks[0] >= _budget(cost, share - 0.08)  # two layers of 24 less would do, none more
    assert all(one >= other for one, other in pairwise(peaks))
    for each in found:
        assert not any(
            lies_in(one, other) or lies_in(other, one) for one, other in combinations(each.paths, 2)
        )


def test_less_memory_takes_longer_and_never_as_long_as_all_blocks_do(chain: Chain) -> None:
    cost = StepCost(chain(1, 256, num_layers=24))
    seconds = [some_blocks(cost, _op_s, (), _budget(cost, share))[0].cost_s for share in (0.9, 0.75, 0.6)]
    assert seconds == sorted(set(seconds))
    assert seconds[-1] < max(each.cost_s for each in list_blocks(cost, _op_s))


def test_what_must_not_run_again_does_not(chain: Chain) -> None:
    cost = StepCost(chain(1, 256, num_layers=24))
    first = some_blocks(cost, _op_s, (), _budget(cost, 0.75))[0].paths
    never = frozenset(first[:2])
    found = some_blocks(cost, _op_s, never, _budget(cost, 0.75))
    assert found
    assert not any(lies_in(refused, path) for each in found for path in each.paths for refused in never)


def test_nothing_is_chosen_for_what_blocks_cannot_do_or_need_not(chain: Chain) -> None:
    cost = StepCost(chain(1, 256, num_layers=24))
    partly = some_blocks(cost, _op_s, (), cost.lasting_bytes)
    assert all(cost.peak_bytes(each.changed) > 2 * cost.lasting_bytes for each in partly)
    assert some_blocks(cost, _op_s, (), 1.5 * cost.peak_bytes()) == []
