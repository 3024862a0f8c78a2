"""Boxes of objects: each with a class and a score.

info      the words, without torch                 record    all of it, as the verbs ask for it
terms     batch -> sums and counts of the losses   finding   scenes -> tiles -> boxes, settled once (settle)
predict   scenes -> files of each (files)          picture   boxes drawn over their scene
evaluate  found beside true (truth), compare       chapter   scores -> sections of the report
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.tasks.detect.info import INFO

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task

__all__ = ["INFO", "load_chapter", "load_task"]


def load_task() -> Task:
    """Load all that the task does."""
    from outsize.tasks.detect.record import TASK

    return TASK


def load_chapter() -> Chapter:
    """Load what a report says of its runs."""
    from outsize.tasks.detect.chapter import CHAPTER

    return CHAPTER
