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
from outsize.tasks import FIRST, TASKS, chapter_of, info_of, task_for, task_of
from outsize.tasks.info import TaskInfo
from outsize.tasks.instances.record import TASK as INSTANCES
from outsize.tasks.segment.record import TASK as SEGMENT
from outsize.tasks.subjects import short_names
from outsize.tasks.task import HeldBack, Task


def test_names_are_those_of_the_job_file() -> None:
    assert set(TASKS) == set(get_args(Job.model_fields["task"].annotation))
    assert Job.model_fields["task"].default == FIRST


@pytest.mark.parametrize("name", TASKS)
def test_a_record_is_whole(name: str) -> None:
    task, info, chapter = task_of(name), info_of(name), chapter_of(name)
    assert isinstance(task, Task)
    assert isinstance(info, TaskInfo)
    assert isinstance(chapter, Chapter)
    assert task.info is info
    assert (chapter.score, chapter.score_name) == (info.score, info.score_name)
    assert task_for(info.labels) == name
    assert "[model]" in info.first_sections
    assert "[train]" in info.first_sections
    # where tiles need not have the answer of the whole, a user is given the reason
    assert bool(info.joined) == (not task.cutting.exactly)


def test_what_differs() -> None:
    assert SEGMENT is task_of("segment")
    assert SEGMENT.cutting is PER_PIXEL
    assert SEGMENT.tiles_train
    assert not INSTANCES.tiles_train
    assert SEGMENT.info.comparison != INSTANCES.info.comparison
    assert {each.name for each in fields(HeldBack)} == {"scenes", "table", "card", "tiling", "settings"}
    assert short_names([]) == []


def test_words_are_known_without_torch() -> None:
    code = "import sys, outsize.tasks as tasks; assert tasks.info_of(tasks.FIRST); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
