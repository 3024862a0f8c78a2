"""The third step of a training in stages is kept, by the owner alone."""

from __future__ import annotations

import json
from pathlib import Path

from outsize.plan.plan import Pipeline, PlannedStage
from outsize.ranks import ALONE
from outsize.session.watching import WatchedStep
from outsize.strategies.replicate import share_out

_STEP = [(("forward", 0, 0), 10.0, 11.0), (("backward", 0, 0), 11.5, 14.0)]


def test_the_third_step_is_kept_beside_what_was_predicted(tmp_path: Path) -> None:
    pipeline = Pipeline((PlannedStage(0, ("", 0), 1.0, 2.0),), 1)
    path = tmp_path / "schedule.json"
    watched = WatchedStep(lambda: pipeline, share_out(ALONE, 1), path)
    for _ in range(2):
        watched.done([(task, began_s - 5, ended_s) for task, began_s, ended_s in _STEP])
        assert not path.exists()
    watched.done(_STEP)
    watched.done([])
    kept = json.loads(path.read_text())
    assert kept["measured"] == [[0, "forward", 0, 0.0, 1.0], [0, "backward", 0, 1.5, 4.0]]
    assert kept["predicted"] == [[0, "forward", 0, 0.0, 1.0], [0, "backward", 0, 1.0, 3.0]]
    assert (kept["step"], kept["num_micro"]) == (3, 1)
