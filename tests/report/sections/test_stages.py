"""Both pictures of a step in stages, and how much of each ranks wait."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from outsize.report.gather import gather
from outsize.report.sections.stages import show_stages

_STEP = [[0, "forward", 0, 0.0, 1.0], [1, "forward", 0, 1.0, 2.0], [1, "backward", 0, 2.0, 4.0]]


def test_a_step_is_drawn_as_predicted_and_as_measured(trained_run: Path) -> None:
    story = gather(trained_run)
    assert show_stages(story) is None, "not in stages"
    measured = [[rank, doing, micro, 2 * began_s, 2 * end_s] for rank, doing, micro, began_s, end_s in _STEP]
    kept = {"step": 3, "schedule": "1f1b", "num_ranks": 2, "num_micro": 1}
    kept |= {"predicted": _STEP, "measured": measured}
    shown = str(show_stages(replace(story, schedule=json.loads(json.dumps(kept)))))
    assert "predicted: 4.0 s, ranks wait 50%" in shown
    assert "measured, step 3: 8.0 s, ranks wait 50%" in shown
    assert shown.count("<svg") == 2
