"""Tasks are chosen by name, known in words without torch, and their records are whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from outsize.infer.cutting import PER_PIXEL
from outsize.job import Job
from outsize.report.parts import Chapter
from outsize.tasks import FIRST, TASKS, chapter_of, task_for, task_of, told_of
from outsize.tasks.instances.record import TASK as INSTANCES
from outsize.tasks.segment.record import TASK as SEGMENT
from outsize.tasks.subjects import short_names
from outsize.tasks.task import HeldBack, Task
from outsize.tasks.told import Told


def test_names_are_those_of_the_job_file() -> None:
    assert set(TASKS) == set(get_args(Job.model_fields["task"].annotation))
    assert Job.model_fields["task"].default == FIRST


@pytest.mark.parametrize("name", TASKS)
def test_a_record_is_whole(name: str) -> None:
    task, told, chapter = task_of(name), told_of(name), chapter_of(name)
    assert isinstance(task, Task)
    assert isinstance(told, Told)
    assert isinstance(chapter, Chapter)
    assert task.told is told
    assert (chapter.score, chapter.score_name) == (told.score, told.score_name)
    assert task_for(told.labels) == name
    assert "[model]" in told.first_sections
    assert "[train]" in told.first_sections
    # where tiles need not have the answer of the whole, a user is told why
    assert bool(told.joined) == (not task.cutting.exactly)


def test_what_differs() -> None:
    assert SEGMENT is task_of("segment")
    assert SEGMENT.cutting is PER_PIXEL
    assert SEGMENT.tiles_train
    assert not INSTANCES.tiles_train
    assert SEGMENT.told.comparison != INSTANCES.told.comparison
    assert {each.name for each in fields(HeldBack)} == {"scenes", "table", "card", "tiling", "settings"}
    assert short_names([]) == []


def test_words_are_known_without_torch() -> None:
    code = "import sys, outsize.tasks as tasks; assert tasks.told_of(tasks.FIRST); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
