"""The colour of what is wrong is no class's colour, for any eye."""

from __future__ import annotations

import pytest

from outsize.data.synthetic.scenes import CLASSES
from outsize.tasks.first_job import COLOURS
from outsize.tasks.segment.wrong import _apart, _perceived, wrong_colour

DEMO = [each.colour for each in CLASSES]
INIT = [(int(text[1:3], 16), int(text[3:5], 16), int(text[5:], 16)) for text in COLOURS]


@pytest.mark.parametrize("classes", [DEMO, INIT, [(0, 0, 0), (255, 255, 255)], [*DEMO, (0, 0, 0)]])
def test_no_class_looks_like_it(classes: list[tuple[int, int, int]]) -> None:
    wrong = wrong_colour(classes)
    apart = _apart(_perceived([wrong])[:, :, None], _perceived(classes)[:, None])
    assert apart.min() > 15  # the red of before was 2 from buildings


def test_without_red_or_green_cones_green_and_brown_look_alike() -> None:
    green, brown = (0, 160, 50), (156, 114, 76)
    apart = _apart(_perceived([green])[:, :, None], _perceived([brown])[:, None])[:, 0, 0]
    assert min(apart[1:]) < apart[0] / 2
