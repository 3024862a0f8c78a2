"""Boxes as a task: judged by what it says, never cut in training, settled in tiles."""

from __future__ import annotations

from outsize.tasks.detect.info import INFO
from outsize.tasks.detect.record import TASK


def test_the_record_has_the_words_of_the_task() -> None:
    assert TASK.info is INFO
    assert not TASK.tiles_train
    assert not TASK.cutting.exactly
    assert INFO.score in ("box_ap",)
    assert INFO.in_scores == ("box", "ap")
