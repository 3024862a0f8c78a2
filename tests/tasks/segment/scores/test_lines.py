"""Scores as lines of text."""

from __future__ import annotations

from typing import Any

from outsize.tasks.segment.scores.lines import class_lines, outline_lines, published_lines, scene_lines


def _result() -> dict[str, Any]:
    row = {"iou": 0.5, "accuracy": 0.625, "f1": 0.75, "bf": None, "num_px": 1234, "num_scenes": 2}
    means = {"mean_iou": 0.5, "mean_accuracy": 0.6, "mean_f1": 0.7, "mean_bf": 0.8}
    return {
        **means,
        "weighted_iou": 0.55,
        "pixel_accuracy": 0.9,
        "num_px": 2468,
        "classes": {"sky": row, "a class with a long name": row},
        "published": None,
    }


def test_columns_stay_under_their_heads() -> None:
    lines = class_lines(_result())
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["sky", "0.5000", "0.6250", "0.7500", "-", "1,234"]
    assert lines[-2].split() == ["mean", "of", "classes", "0.5000", "0.6000", "0.7000", "0.8000", "2,468"]
    assert lines[-1].split() == ["mean", "of", "pixels", "0.5500", "0.9000", "2,468"]
    for head in ("IoU", "accuracy", "BF", "pixels"):
        end = lines[0].index(head) + len(head)
        assert all(line[end - 1] != " " for line in lines[1:3])


def test_outlines_by_pixels() -> None:
    found = {str(px): {"mean": px / 16, "mean_where_present": None, "classes": {}} for px in (2, 12)}
    lines = outline_lines({"pixels": found})
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[3:] for line in lines] == [["2", "px", "12", "px"], ["0.1250", "0.7500"], ["-", "-"]]


def test_of_many_scenes_the_worst_are_shown() -> None:
    scenes = [
        {
            "name": f"{number}.png",
            "mean_iou": number / 100,
            "pixel_accuracy": 0.5,
            "mean_bf": None,
            "num_px": 7,
        }
        for number in range(40, 10, -1)
    ]
    scenes.append({"name": "unlabelled.png", "mean_iou": None, "pixel_accuracy": None, "num_px": 0})
    lines = scene_lines(scenes)
    assert lines[0].startswith("worst of 31")
    assert [line.split()[0] for line in lines[1:]] == [f"{number}.png" for number in range(11, 23)]
    assert len(scene_lines(scenes[:3])) == 4
    assert scene_lines(scenes[:1]) == []


def test_what_was_published_and_what_was_not() -> None:
    result = _result()
    assert published_lines(result) == []
    cited = {"mean_iou": 0.66822, "mean_bf": 0.70117, "another": 0.25}
    classes = {"sky": {"iou": 0.90804, "bf": 0.90636}, "unknown here": {"iou": 0.1}}
    result["published"] = {"source": "", "scores": cited, "classes": classes}
    title, heads, *rows = published_lines(result)
    assert title == "beside what was published"
    assert heads.split() == ["IoU", "publ.", "BF", "publ."]
    assert [" ".join(row.split()) for row in rows] == [
        "sky 0.5000 0.9080 - 0.9064",
        "unknown here - 0.1000 - -",
        "mean of classes 0.5000 0.6682 0.8000 0.7012",
        "another - 0.2500",
    ]
