"""Objects: each with a class, a box and a mask.

info      the words, without torch                 record    all of it, as the verbs ask for it
terms     batch -> sums and counts of the losses   finding/  scene -> tiles -> objects, joined
scene     objects -> files of a scene              predict   scenes of a run, one after the other
truth     found beside true: evaluate, compare     chapter   scores -> sections of the report
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.tasks.instances.info import INFO

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task

__all__ = ["INFO", "load_chapter", "load_task"]


def load_task() -> Task:
    """Load all that the task does."""
    from outsize.tasks.instances.record import TASK

    return TASK


def load_chapter() -> Chapter:
    """Load what a report says of its runs."""
    from outsize.tasks.instances.chapter import CHAPTER

    return CHAPTER
