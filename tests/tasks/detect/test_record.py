"""Boxes as a task: judged by what it says, never cut in training, settled in tiles."""

from __future__ import annotations

from outsize.tasks.detect.record import TASK
from outsize.tasks.detect.told import TOLD


def test_the_record_has_the_words_of_the_task() -> None:
    assert TASK.told is TOLD
    assert not TASK.tiles_train
    assert not TASK.cutting.exactly
    assert TOLD.score in ("box_ap",)
    assert TOLD.in_scores == ("box", "ap")
