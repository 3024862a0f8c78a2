"""The order of work that is best: a fold is kept busy at its turn, memory bounds it, and splitting has its price."""

from __future__ import annotations

from dataclasses import replace

from outsize.plan.plan import Pipeline, PlannedStage
from outsize.plan.simulate import best_orders, play_planned
from outsize.plan.simulate.pipeline import Stages, StageWork, play

# ERFNet folded over two ranks, in ms: a thin stage, then two of the same work
_THIN_FOLD = Stages(
    (
        StageWork(0, 2.8, 2.4, kept_bytes=1),
        StageWork(1, 24.3, 33.5, kept_bytes=9),
        StageWork(0, 23, 30.7, 0, 9),
    )
)
_MICRO = 8


def _bound(stages: Stages, num_micro: int) -> float:
    return num_micro * max(
        sum(work.forward_s + work.backward_s for work in stages.works if work.rank == rank) for rank in (0, 1)
    )


def test_a_fold_is_busy_at_its_turn() -> None:
    usual_s, best = play(_THIN_FOLD, _MICRO).step_s, best_orders(_THIN_FOLD, _MICRO)
    assert _bound(_THIN_FOLD, _MICRO) / usual_s < 0.87
    plain = next(each for each in best if each.schedule == "1f1b")
    assert _bound(_THIN_FOLD, _MICRO) / plain.played.step_s > 0.92
    assert best[0].played.step_s == min(each.played.step_s for each in best)


def test_less_memory_leaves_fewer_micro_batches_on_their_way() -> None:
    free = best_orders(_THIN_FOLD, _MICRO)[0]
    tight = best_orders(_THIN_FOLD, _MICRO, free.peak_bytes - 1)[0]
    assert tight.peak_bytes < free.peak_bytes
    assert tight.played.step_s > free.played.step_s
    least = best_orders(_THIN_FOLD, _MICRO, 0)[0]
    assert least.peak_bytes > 0, "what does not fit is still told, by what keeps the least"
    assert least.peak_bytes <= tight.peak_bytes


def test_splitting_backward_is_taken_where_it_costs_less_than_it_fills() -> None:
    works = tuple(StageWork(rank, 1.0, 2.0, kept_bytes=1, weights_s=1.0) for rank in range(4))
    assert best_orders(Stages(works), 4)[0].schedule == "zero-bubble"
    costly = tuple(replace(work, split_s=2.0) for work in works)
    assert best_orders(Stages(costly), 4)[0].schedule == "1f1b"
    split_s = play(Stages(costly), 1, "zero-bubble").busy_s(0)
    assert split_s == 5.0, "forward, both parts of backward, and what comes to it"


def test_of_orders_as_good_that_is_taken_which_keeps_the_least() -> None:
    even = Stages(tuple(StageWork(rank, 1.0, 2.0, kept_bytes=1, split_s=9.0) for rank in range(3)))
    best = best_orders(even, 9)[0]
    assert best.schedule == "1f1b", "GPipe takes as long and keeps all"
    assert best.played.peaks() == [3, 2, 1]


def test_a_plan_is_carried_out_in_the_order_that_was_found() -> None:
    stages = tuple(
        PlannedStage(work.rank, (f"layer{number}", 0), work.forward_s, work.backward_s)
        for number, work in enumerate(_THIN_FOLD.works)
    )
    best = best_orders(_THIN_FOLD, _MICRO)[0]
    pipeline = best.carried_out(Pipeline(stages, _MICRO))
    played = play_planned(pipeline, _MICRO)
    assert [played.order(rank) for rank in (0, 1)] == [best.played.order(rank) for rank in (0, 1)]
