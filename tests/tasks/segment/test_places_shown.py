"""Pictures of places: in what order, with which figure first, and what is wrong in its own colour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from outsize.report.gather import gather
from outsize.tasks.segment.places_shown import show_places
from outsize.tasks.segment.strips import repaint


def _shown(run: Path) -> str:
    story = gather(run)
    return str(show_places(story, "test", story.scores["test"]))


def test_the_figure_they_are_ordered_by_comes_first(full_run: Path) -> None:
    path = full_run / "scores.json"
    scores = json.loads(path.read_text())
    assert "Ordered by mean IoU" in _shown(full_run)  # scores of an older version
    assert "mean IoU 0.500, 10.0 % wrong" in _shown(full_run)
    for place in scores["test"]["places"]:
        place["wrong"] = 0.1
    path.write_text(json.dumps(scores))
    shown = _shown(full_run)
    assert "Ordered by the share of wrong pixels" in shown
    assert "10.0 % wrong, mean IoU 0.500" in shown


def test_wrong_is_repainted_whatever_it_was_drawn_in() -> None:
    pixels = np.full((2, 3, 3), 145, np.uint8)
    pixels[0] = [(214, 39, 40), (0, 0, 0), (255, 255, 255)]
    found = np.asarray(repaint(Image.fromarray(pixels), (0, 70, 255)))
    assert found[0].tolist() == [[0, 70, 255], [0, 70, 255], [255, 255, 255]]
    assert (found[1] == 145).all()
