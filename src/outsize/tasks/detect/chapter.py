"""Sections about boxes that were found: KITTI's figures with their curves, COCO's, a picture."""

from __future__ import annotations

from typing import Any

from outsize.report.curves import Axis, Curve, draw_curves
from outsize.report.gather import Story
from outsize.report.markup import Markup, join, table, tag
from outsize.report.parts import Chapter, cards_of, drawn_from, figure, first_split, picture_of, section
from outsize.tasks.detect.info import INFO

Tree = dict[str, Any]
_READINGS = {"ap_11": "11 points", "ap_40": "40 points", "ap_41": "mean of 41"}
_RULES = {"height": "low boxes neutral", "plain": "low boxes count"}
_DIFFICULTIES = ("easy", "moderate", "hard")
_COCO = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_small": "small",
    "ap_medium": "medium",
    "ap_large": "large",
}


def show_summary(story: Story) -> Markup:
    """Return the few figures that matter, as cards."""
    cards = [(value, name) for name, value in _figures(story).items()]
    if story.epochs:
        cards.append((figure(max(each["box_ap"] for each in story.epochs)), "best validation box AP"))
    return cards_of(cards)


def show_scores(split: str, scores: Tree) -> Markup:
    """Return the scores of one split: each class by KITTI, all of them by COCO."""
    boxes = [_kitti(name, rules) for name, rules in (scores["kitti"] or {}).items()]
    by_class = [
        (name, figure(row["ap"]), figure(row["ap50"]), f"{row['num_true']:,}", f"{row['num_found']:,}")
        for name, row in scores["box"]["classes"].items()
    ]
    row = ("all", *(figure(scores["box"][key]) for key in _COCO))
    boxes.append(join(tag("h4", "COCO"), table(("", *_COCO.values()), [row])))
    boxes.append(join(tag("h4", "COCO, by class"), table(("class", "AP", "AP50", "true", "found"), by_class)))
    aoi = f"Only inside {scores['aoi']}." if scores.get("aoi") else None
    return section(
        f"Scores: {split}", tag("div", [tag("div", box) for box in boxes], class_="boxes"), note=aoi
    )


def show_picture(story: Story) -> Markup | None:
    """Return true and found boxes, as `evaluate` drew them."""
    shown = picture_of(story.run.picture, "true and found boxes")
    return None if shown is None else section("Boxes", shown, note="True above, found below.")


def _kitti(name: str, rules: Tree) -> Markup:
    """Return all readings of one class, and precision over recall at each difficulty."""
    rows = [
        (f"{_READINGS[reading]}, {_RULES[rule]}", *(figure(figures[reading][each]) for each in _DIFFICULTIES))
        for rule, figures in rules.items()
        for reading in _READINGS
    ]
    counted = rules["height"]["num_valid"]
    rows.append(("objects that count", *(f"{counted[each]:,}" for each in _DIFFICULTIES)))
    curves = [
        Curve(each, [(step / 40, value) for step, value in enumerate(rules["height"]["precision"][each])])
        for each in _DIFFICULTIES
    ]
    chart = draw_curves(Axis("recall", 0, 1), Axis("precision", 0, 1), curves)
    note = "Precision is the largest at this recall or a higher one; 0 where no threshold reaches it."
    if min(counted.values()) < len(rules["height"]["precision"]["easy"]):
        note += (
            " Fewer than 41 objects do not reach all recalls: found without a fault, they have less than 1."
        )
    return join(
        tag("h4", f"KITTI, {name}"), table(("AP", *_DIFFICULTIES), rows), chart, tag("p", note, class_="note")
    )


def _figures(story: Story) -> dict[str, str]:
    """Return the figures of a run among several."""
    found = first_split(story)
    if not found:
        return {}
    scores = found[1]
    cells = {"box AP": figure(scores["box"]["ap"]), "box AP50": figure(scores["box"]["ap50"])}
    for name, rules in (scores["kitti"] or {}).items():
        cells[f"{name} moderate, 40 points"] = figure(rules["height"]["ap_40"]["moderate"])
    return cells


def _show(story: Story) -> list[Markup | None]:
    """Return what there is to say of boxes."""
    run = story.run
    return [
        drawn_from(run.scores, "evaluate", show_summary, story),
        *(drawn_from(run.scores, "evaluate", show_scores, *each) for each in story.scores.items()),
        show_picture(story),
    ]


CHAPTER = Chapter(INFO.score, INFO.score_name, _show, _figures)
