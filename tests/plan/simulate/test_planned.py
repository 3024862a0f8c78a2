"""A planned pipeline: an order of work for each rank, and its form in plan.json."""

from __future__ import annotations

import json

import pytest

from outsize.plan.plan import Pipeline, PlannedStage, plan_from_dict, unplanned
from outsize.plan.simulate import play_planned


def _pipeline(ranks: tuple[int, ...], schedule: str, *, again: bool = False) -> Pipeline:
    stages = tuple(
        PlannedStage(rank, (f"layer{number}", 0), recomputes=again) for number, rank in enumerate(ranks)
    )
    return Pipeline(stages, 4, schedule, ((0, 1, 0.1),))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("ranks", [(0,), (0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 2, 1, 0)])
@pytest.mark.parametrize("num_micro", [1, 2, 7])
def test_each_stage_does_all_of_each_micro_batch_once(
    schedule: str, ranks: tuple[int, ...], num_micro: int
) -> None:
    pipeline = _pipeline(ranks, schedule, again=True)
    played = play_planned(pipeline, num_micro)
    orders = [played.order(rank) for rank in range(pipeline.num_ranks)]
    doings = ["forward", "recompute", "backward", *(["weights"] if schedule == "zero-bubble" else [])]
    for rank, order in enumerate(orders):
        assert sorted(order) == sorted(
            (doing, stage, micro)
            for doing in doings
            for stage, owner in enumerate(ranks)
            for micro in range(num_micro)
            if owner == rank
        )
        for stage, owner in enumerate(ranks):
            if owner == rank:  # norms count micro-batches in their order
                found = [micro for doing, at, micro in order if (doing, at) == ("forward", stage)]
                assert found == sorted(found)


def test_a_pipeline_comes_back_from_its_json_form() -> None:
    plan = unplanned(pipeline=_pipeline((0, 1, 0), "1f1b"))
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan
