"""What differs between kinds of answer: one folder for each task, chosen by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outsize.tasks import classify, detect, forecast, instances, segment
from outsize.tasks.info import TaskInfo

if TYPE_CHECKING:
    from outsize.report.parts import Chapter
    from outsize.tasks.task import Task


@dataclass(frozen=True)
class TaskEntry:
    """A task as far as it is known without torch, and how to load the rest of it."""

    info: TaskInfo
    load: Callable[[], Task]
    load_chapter: Callable[[], Chapter]  # of the report


TASKS: dict[str, TaskEntry] = {
    "segment": TaskEntry(segment.INFO, segment.load_task, segment.load_chapter),
    "instances": TaskEntry(instances.INFO, instances.load_task, instances.load_chapter),
    "detect": TaskEntry(detect.INFO, detect.load_task, detect.load_chapter),
    "classify": TaskEntry(classify.INFO, classify.load_task, classify.load_chapter),
    "forecast": TaskEntry(forecast.INFO, forecast.load_task, forecast.load_chapter),
}
FIRST = next(iter(TASKS))  # of a model that brings no job


def task_of(name: str) -> Task:
    """Return all that a task does; its modules are loaded now."""
    return TASKS[name].load()


def info_of(name: str) -> TaskInfo:
    """Return the words of a task."""
    return TASKS[name].info


def chapter_of(name: str) -> Chapter:
    """Return what a report says of the runs of a task."""
    return TASKS[name].load_chapter()


def task_for(labels: str) -> str:
    """Return the name of the first task whose labels tell this."""
    return next(name for name, entry in TASKS.items() if entry.info.labels == labels)
