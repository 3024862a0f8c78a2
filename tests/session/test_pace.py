"""How fast a training goes: told each tenth step, of all since the last time."""

from __future__ import annotations

from outsize.session.pace import StepPace


def test_every_tenth_step_tells_of_all_since_the_last() -> None:
    pace = StepPace(batch=8)
    told = [
        pace.told(
            {"step": step, "step_s": 0.5, "wait_s": 0.1 if step > 10 else 0.0, "terms": {"a": 1.0, "b": 0.5}}
        )
        for step in range(1, 21)
    ]
    assert [number + 1 for number, each in enumerate(told) if each] == [10, 20]
    assert told[9] == {"loss": 1.5, "samples_per_s": 16.0, "waiting_share": 0.0}
    assert told[19] == {"loss": 1.5, "samples_per_s": 16.0, "waiting_share": 0.2}


def test_the_best_score_stays() -> None:
    pace = StepPace(batch=8)
    assert [pace.judged(score) for score in (0.2, 0.5, 0.4)] == [
        {"score": 0.2, "best": 0.2},
        {"score": 0.5, "best": 0.5},
        {"score": 0.4, "best": 0.5},
    ]
