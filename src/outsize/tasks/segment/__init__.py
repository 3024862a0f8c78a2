"""Segmentation: one class for each pixel.

info      the words, without torch                 record    all of it, as the verbs ask for it
terms     batch -> sums and counts of the losses   logits    one logit for two classes
maps/     logits -> classes -> files of a scene    scores/   maps and labels -> scores, pictures, lines
chapter   scores -> sections of the report, with places_shown, strips and wrong
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.tasks.segment.info import INFO

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task

__all__ = ["INFO", "load_chapter", "load_task"]


def load_task() -> Task:
    """Load all that the task does."""
    from outsize.tasks.segment.record import TASK

    return TASK


def load_chapter() -> Chapter:
    """Load what a report says of its runs."""
    from outsize.tasks.segment.chapter import CHAPTER

    return CHAPTER
