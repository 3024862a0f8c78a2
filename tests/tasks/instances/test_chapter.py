"""A run that found objects has a page too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outsize.report.gather import gather
from outsize.report.page import make_page
from outsize.report.sections.usage import show_usage
from outsize.tasks import chapter_of
from outsize.tasks.instances.chapter import show_picture, show_scores, show_summary

JOB = """
task = "instances"
[data]
classes = [{ name = "disc <1>", value = 1, colour = [255, 0, 0] }]
[model]
name = "maskrcnn"
[train]
batch = 2
"""
KIND = {"ap": 0.4, "ap50": 0.7, "ap75": 0.3, "ap_small": None, "ap_medium": 0.5, "ap_large": None, "ar": 0.6}
CLASSES = {"disc <1>": {"ap": 0.4, "ap50": 0.7, "num_true": 1200, "num_found": 1100}}
AGREED = {"f1": 0.81, "precision": 0.8, "recall": 0.82, "num_matched": 9, "num_true": 11, "num_found": 12}
SCORES = {
    "mask": {**KIND, "most_found": 100, "classes": CLASSES},
    "box": {**KIND, "most_found": 100, "classes": CLASSES},
    "map": AGREED,
    "sizes_at": "the pictures' own size",
    "scenes": [{"name": f"scene {number}", **AGREED} for number in range(20)],
    "official": {"by": "somebody else", "ap": 0.4, "ap50": 0.7},
    "aoi": None,
}
USED = {
    "device": "a CPU",
    "s_per_image": 1.5,
    "num_images": 4,
    "images_per_device": 2,
    "gpu_use": 0.5,
    "gpu_bytes": 2**30,
    "cpu_load": 0.25,
    "host_bytes": 2**31,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "scores.json").write_text(json.dumps({"test": SCORES}))
    (tmp_path / "usage.json").write_text(json.dumps({"train": USED}))
    lines = [{"kind": "epoch", "epoch": number, "mask_ap50": number / 10} for number in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return tmp_path


def test_sections_hold_the_figures(run: Path) -> None:
    story = gather(run)
    assert "0.7000" in show_summary(story)
    assert "0.2000" in show_summary(story)
    text = show_scores("test", SCORES)
    for part in ("disc &lt;1&gt;", "1,200", "somebody else", "scene 19", "8 more scenes"):
        assert part in text
    usage = show_usage(story)
    assert usage is not None
    assert "1.0 GiB" in usage
    assert show_picture(story) is None


def test_the_whole_page_is_made(run: Path) -> None:
    page = make_page([run, run], chapter_of, version="1", when="now")
    assert "mask AP50" in page
    assert "Runs side by side" in page
    assert "mean IoU" not in page
