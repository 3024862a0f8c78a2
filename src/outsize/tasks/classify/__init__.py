"""One class for each picture.

info      the words, without torch                record    all of it, as the verbs ask for it
terms     batch -> sums and counts of losses      answers   pictures -> probabilities, many at once
predict   pictures of a run -> table, sheet       table     a line for each picture, in CSV
evaluate  table and labels -> scores, pictures    sheet     pictures side by side; the confusion matrix drawn
compare   two tables -> where they agree          chapter   scores -> sections of the report
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.tasks.classify.info import INFO

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task

__all__ = ["INFO", "load_chapter", "load_task"]


def load_task() -> Task:
    """Load all that the task does."""
    from outsize.tasks.classify.record import TASK

    return TASK


def load_chapter() -> Chapter:
    """Load what a report says of its runs."""
    from outsize.tasks.classify.chapter import CHAPTER

    return CHAPTER
