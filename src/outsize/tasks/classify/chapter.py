"""What a report says of pictures with one class each: figures, classes, which are taken for which, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.report.gather import Story
from outsize.report.markup import Markup, join, table, tag
from outsize.report.parts import (
    Chapter,
    cards_of,
    drawn_from,
    figure,
    first_split,
    percent,
    picture_of,
    section,
)
from outsize.tasks.classify.info import INFO

Tree = dict[str, Any]


def show_summary(story: Story) -> Markup:
    """Return the few figures that matter, as cards."""
    cards: list[tuple[str, str]] = []
    found = first_split(story)
    if found:
        split, scores = found
        right = f"{sum(row[number] for number, row in enumerate(scores['confusion'])):,}"
        cards += [
            (percent(scores["accuracy"]), f"accuracy, {split}"),
            (f"{right} of {scores['num_pictures']:,}", "pictures right"),
            (figure(scores["mean_f1"]), "mean F1"),
        ]
    if story.epochs:
        best = max(each["accuracy"] for each in story.epochs)
        cards.append((percent(best), "best validation accuracy"))
    return cards_of(cards)


def show_scores(story: Story, split: str, scores: Tree) -> Markup:
    """Return the scores of one split: classes, the confusion matrix, the mistakes."""
    rows = [
        (name, *(figure(row[key]) for key in ("precision", "recall", "f1")), f"{row['num_pictures']:,}")
        for name, row in scores["classes"].items()
    ]
    boxes = [
        join(tag("h4", "By class"), table(("class", "precision", "recall", "F1", "pictures"), rows)),
        join(tag("h4", "Which is taken for which"), _confusion(scores)),
    ]
    note = "Precision: of the pictures taken for a class, the share of it; recall: of its pictures, the share found."
    return section(
        f"Scores: {split}",
        tag("div", [tag("div", box) for box in boxes], class_="boxes"),
        picture_of(story.run.path / scores["wrong"]["picture"], "mistakes") if scores["wrong"] else None,
        note=note,
    )


def show_predicted(story: Story) -> Markup | None:
    """Return the sheet of what was predicted last."""
    for entry in reversed(story.predicted.get("scenes", [])):
        shown = picture_of(story.run.predictions / Path(entry["picture"]).name, "predicted pictures")
        if shown is not None:
            return section("Predicted", shown)
    return None


def _confusion(scores: Tree) -> Markup:
    names = list(scores["classes"])
    rows = [
        (name, *(f"{count:,}" if count else "" for count in counts))
        for name, counts in zip(names, scores["confusion"], strict=True)
    ]
    return table(("true", *names), rows)


def _figures(story: Story) -> dict[str, str]:
    """Return the figures of a run among several."""
    found = first_split(story)
    return {"accuracy": figure(found[1]["accuracy"]), "mean F1": figure(found[1]["mean_f1"])} if found else {}


def _show(story: Story) -> list[Markup | None]:
    """Return what there is to say of pictures with one class each."""
    run = story.run
    return [
        drawn_from(run.scores, "evaluate", show_summary, story),
        *(drawn_from(run.scores, "evaluate", show_scores, story, *each) for each in story.scores.items()),
        drawn_from(run.predictions / "predict.json", "predict", show_predicted, story),
    ]


CHAPTER = Chapter(INFO.score, INFO.score_name, _show, _figures)
