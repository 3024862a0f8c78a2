"""The plan that a training left in its run, read again; or a clear word about a file that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outsize.errors import RunError
from outsize.plan.plan import Fuse, Plan, Recompute
from outsize.planning.planned import read_train_plan
from outsize.runs import RunFolder

PLAN = Plan(
    "train",
    4,
    limit_bytes=2**30,
    peak_bytes=2**29,
    exact=True,
    why=("it fits",),
    recompute=Recompute(saved=(("a", 0, 1),), waits=(3,)),
    fuse=Fuse(joins=("merge.0",), shifts=(("merge.0", "up.0"),)),
    graph=True,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"train": PLAN.as_dict()}))
    assert read_train_plan(RunFolder(tmp_path)) == PLAN


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"train": null}', '{"train": {}}', '{"train": {"fuse": 3}}', "no"]
)
def test_what_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunError, match=r"plan\.json"):
        read_train_plan(RunFolder(tmp_path))
