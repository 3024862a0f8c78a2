"""What is said of pixels without an answer."""

from __future__ import annotations

from pathlib import Path

from outsize.tasks.segment.maps.unanswered import none_answered, unanswered_line


def test_a_warning_says_where_and_how_many() -> None:
    line = unanswered_line("a.tif", 12_345)
    assert line.startswith(
        "warning: 12,345 pixels of a.tif got no class: the logits there are NaN or infinite"
    )
    assert "\n" not in line


def test_a_scene_without_any_answer_is_a_line_of_four_parts() -> None:
    text = str(none_answered(Path("a.tif")))
    assert text.startswith(
        "the model has no answer for a.tif: found NaN or infinity for every pixel, needed finite"
    )
