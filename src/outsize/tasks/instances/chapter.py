"""Sections about objects that were found: average precision, F1 on the map, scenes, a picture."""

from __future__ import annotations

from typing import Any

from outsize.report.gather import Story
from outsize.report.markup import Markup, join, table, tag
from outsize.report.parts import Chapter, cards_of, drawn_from, figure, first_split, picture_of, section
from outsize.tasks.instances.info import INFO

Tree = dict[str, Any]
_HEADS = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_small": "small",
    "ap_medium": "medium",
    "ap_large": "large",
    "ar": "recall",
}
_MANY = 12  # rows that are shown at once


def show_summary(story: Story) -> Markup:
    """Return the few figures that matter, as cards."""
    cards: list[tuple[str, str]] = []
    found = first_split(story)
    if found:
        split, scores = found
        cards += [
            (figure(scores["mask"]["ap50"]), f"mask AP50, {split}"),
            (figure(scores["mask"]["ap"]), "mask AP"),
            (figure(scores["box"]["ap50"]), "box AP50"),
            (figure(scores["map"]["f1"]), "F1 of outlines at IoU 0.5"),
        ]
    if story.epochs:
        cards.append((figure(max(each["mask_ap50"] for each in story.epochs)), "best validation mask AP50"))
    return cards_of(cards)


def show_scores(split: str, scores: Tree) -> Markup:
    """Return the scores of one split: both kinds, classes, scenes."""
    kinds = [(kind, *(figure(scores[kind][key]) for key in _HEADS)) for kind in ("mask", "box")]
    by_class = [
        (name, figure(row["ap"]), figure(row["ap50"]), f"{row['num_true']:,}", f"{row['num_found']:,}")
        for name, row in scores["mask"]["classes"].items()
    ]
    note = (
        f"Small, medium and large: below 32 x 32, below 96 x 96 pixels, and above, at {scores['sizes_at']}; "
        f"up to {scores['mask']['most_found']} found objects of a class count in a picture."
    )
    if scores.get("official"):
        official = scores["official"]
        note += f" By {official['by']}: mask AP {figure(official['ap'])}, AP50 {figure(official['ap50'])}."
    boxes = [
        join(
            tag("h4", "Average precision"),
            table(("", *_HEADS.values()), kinds),
            tag("p", note, class_="note"),
        ),
        join(tag("h4", "By class, masks"), table(("class", "AP", "AP50", "true", "found"), by_class)),
        join(tag("h4", "Outlines on the map, by scene"), _scenes(scores)),
    ]
    aoi = f"Only inside {scores['aoi']}." if scores.get("aoi") else None
    return section(
        f"Scores: {split}", tag("div", [tag("div", box) for box in boxes], class_="boxes"), note=aoi
    )


def show_picture(story: Story) -> Markup | None:
    """Return true and found objects side by side, as `evaluate` drew them."""
    shown = picture_of(story.run.picture, "true and found objects")
    return None if shown is None else section("Objects", shown, note="True | found.")


def _scenes(scores: Tree) -> Markup:
    heads = ("scene", "F1", "precision", "recall", "matched", "true", "found")
    rows = [_line("all", scores["map"]), *(_line(each["name"], each) for each in scores["scenes"])]
    shown = table(heads, rows[: _MANY + 1])
    if len(rows) <= _MANY + 1:
        return shown
    more = tag("summary", f"{len(rows) - _MANY - 1} more scenes")
    return join(shown, tag("details", more, table(heads, rows[_MANY + 1 :])))


def _line(name: str, row: Tree) -> tuple[str, ...]:
    counts = (f"{row[key]:,}" for key in ("num_matched", "num_true", "num_found"))
    return (name, *(figure(row[key]) for key in ("f1", "precision", "recall")), *counts)


def _figures(story: Story) -> dict[str, str]:
    """Return the figures of a run among several."""
    found = first_split(story)
    if not found:
        return {}
    scores = found[1]
    return {
        "mask AP50": figure(scores["mask"]["ap50"]),
        "mask AP": figure(scores["mask"]["ap"]),
        "box AP50": figure(scores["box"]["ap50"]),
    }


def _show(story: Story) -> list[Markup | None]:
    """Return what there is to say of objects."""
    run = story.run
    return [
        drawn_from(run.scores, "evaluate", show_summary, story),
        *(drawn_from(run.scores, "evaluate", show_scores, *each) for each in story.scores.items()),
        show_picture(story),
    ]


CHAPTER = Chapter(INFO.score, INFO.score_name, _show, _figures)
