"""The next frames of a sequence: a number for each pixel and lead.

info      the words, without torch               record     all of it, as the verbs ask for it
terms     batch -> sums and counts of losses     answers    frames -> those that come, tile by tile
chance    forecasts -> probabilities             predict    a forecast -> grids, probabilities, an animation
evaluate  forecasts and truth -> scores beside persistence and optical flow
colours, sheet, animation    pictures            compare    two runs side by side
chapter   scores -> sections of the report
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.tasks.forecast.info import INFO

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task

__all__ = ["INFO", "load_chapter", "load_task"]


def load_task() -> Task:
    """Load all that the task does."""
    from outsize.tasks.forecast.record import TASK

    return TASK


def load_chapter() -> Chapter:
    """Load what a report says of its runs."""
    from outsize.tasks.forecast.chapter import CHAPTER

    return CHAPTER
