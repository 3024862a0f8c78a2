"""Labels follow from the task, and those of another task are refused."""

from __future__ import annotations

import pytest

from outsize.errors import JobError
from outsize.job.labels import for_task


def test_the_task_decides_which_labels_are_read() -> None:
    assert for_task({"task": "instances", "data": {"root": "."}})["data"] == {"root": ".", "objects": True}
    assert for_task({"task": "segment", "data": {}}) == {"task": "segment", "data": {}}
    assert for_task({"data": "none"}) == {"data": "none"}


def test_labels_of_another_task_are_refused() -> None:
    with pytest.raises(JobError, match=r"data\.objects is not for this task"):
        for_task({"task": "segment", "data": {"objects": True}})
