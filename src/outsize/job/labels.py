"""Which labels a task learns, as keys of the data that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outsize.errors import JobError, explain

_KINDS = {
    "instances": "objects",
    "detect": "boxes",
    "classify": "pictures",
    "forecast": "numbers",
}  # of labels, where they are no classes of pixels


def for_task(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with the keys of its data that the task decides."""
    data = tree.get("data")
    if not isinstance(data, Mapping):
        return dict(tree)
    own = _KINDS.get(str(tree.get("task")))
    for task, kind in _KINDS.items():
        if data.get(kind) and kind != own:
            need, remedy = "labels that the task learns", f'leave it out, or set task = "{task}"'
            raise JobError(explain(f"data.{kind} is not for this task", "true", need, remedy))
    return dict(tree) if own is None else {**tree, "data": {**data, own: True}}
