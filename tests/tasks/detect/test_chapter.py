"""A run that found boxes has a page: figures of both measures, curves, and nothing where nothing was scored."""

from __future__ import annotations

import json
from pathlib import Path

from outsize.metrics.kitti import READINGS, RULES
from outsize.report.gather import gather
from outsize.tasks import chapter_of
from outsize.tasks.detect import chapter
from outsize.tasks.detect.evaluate import READING_NAMES, RULE_NAMES, score_lines

JOB = """
task = "detect"
[data]
boxes = true
format = "kitti"
classes = [{ name = "Car", value = 1 }]
[model]
name = "fastbox"
"""
_OF_DIFFICULTY = {"easy": 0.9, "moderate": 0.8, "hard": None}
_RULE = dict.fromkeys(READINGS, _OF_DIFFICULTY) | {
    "aos_11": _OF_DIFFICULTY,
    "num_valid": {"easy": 1000, "moderate": 2, "hard": 0},
    "precision": {each: [0.5] * 41 for each in _OF_DIFFICULTY},
}
_COCO = dict.fromkeys(("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar"), 0.4321)
SCORES = {
    "box": {**_COCO, "classes": {"Car": {"ap": 0.4, "ap50": 0.7, "num_true": 12, "num_found": 34}}},
    "kitti": {"Car": dict.fromkeys(RULES, _RULE)},
    "num_images": 3,
    "num_true": 12,
    "num_found": 34,
    "published": {"source": "a paper", "scores": {"moderate": 0.86}, "classes": {}},
    "aoi": None,
}


def _run(folder: Path, scores: dict[str, object]) -> Path:
    (folder / "job.toml").write_text(JOB)
    (folder / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "epoch": 1, "box_ap": 0.25}) + "\n")
    if scores:
        (folder / "scores.json").write_text(json.dumps(scores))
    return folder


def test_all_readings_are_named_and_drawn(tmp_path: Path) -> None:
    story = gather(_run(tmp_path, {"test": SCORES}))
    page = str(chapter.show_summary(story)) + str(chapter.show_scores("test", SCORES))
    for text in (
        *READING_NAMES.values(),
        *RULE_NAMES.values(),
        "0.9000",
        "0.4321",
        "0.2500",
        "1,000",
        "<svg",
    ):
        assert text in page, text
    assert chapter_of("detect").figures(story)["Car moderate, 40 points"] == "0.8000"
    assert chapter.show_picture(story) is None


def test_nothing_is_said_of_what_was_not_scored(tmp_path: Path) -> None:
    story = gather(_run(tmp_path, {}))
    assert "0.2500" in str(chapter.show_summary(story))
    assert chapter_of("detect").figures(story) == {}


def test_names_of_readings_are_those_that_are_printed(tmp_path: Path) -> None:
    assert (chapter._READINGS, chapter._RULES) == (READING_NAMES, RULE_NAMES)
    story = gather(_run(tmp_path, {"test": SCORES}))
    lines = score_lines("test", SCORES, story.run)
    assert sum("low boxes" in line for line in lines) == len(READINGS) * len(RULES)
    assert any("a paper: moderate 0.86" in line for line in lines)
    assert any("orientation" in line for line in lines)


def test_few_objects_are_said_to_have_less_than_one(tmp_path: Path) -> None:
    story = gather(_run(tmp_path, {"test": SCORES}))
    (line,) = (line for line in score_lines("test", SCORES, story.run) if "at most" in line)
    assert line.split()[-3:] == ["1.0000", "0.0250", "-"]  # of 1000, 2 and no objects
    assert "do not reach all recalls" in str(chapter.show_scores("test", SCORES))
    many = json.loads(json.dumps(SCORES))
    many["kitti"]["Car"]["height"]["num_valid"] = dict.fromkeys(("easy", "moderate", "hard"), 41)
    assert not any("at most" in line for line in score_lines("test", many, story.run))
    assert "do not reach all recalls" not in str(chapter.show_scores("test", many))
