"""Section about several runs side by side: the figures of each, and their validation in one chart."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.report.curves import Curve, draw_epochs
from outsize.report.gather import Story
from outsize.report.markup import Markup, table, tag
from outsize.report.parts import Chapter, first_split, section


def show_runs(stories: Sequence[Story], chapters: Sequence[Chapter]) -> Markup:
    """Return a row of figures for each run, and a chart for each score that epochs are judged by."""
    figures = [chapter.figures(story) for story, chapter in zip(stories, chapters, strict=True)]
    heads = list(dict.fromkeys(head for own in figures for head in own))
    rows = []
    for story, own in zip(stories, figures, strict=True):
        found = first_split(story)
        name = found[0] if found else "–"
        rows.append([story.name, story.job["model"]["name"], name, *(own.get(head, "–") for head in heads)])
    charts = []
    for score, title in dict.fromkeys((each.score, each.score_name) for each in chapters):
        lines = [
            Curve(story.name, [(each["epoch"], each[score]) for each in story.epochs])
            for story in stories
            if story.epochs and score in story.epochs[0]
        ]
        charts += [draw_epochs(f"validation {title}", lines)] if lines else []
    shown = table(("run", "model", "split", *heads), rows)
    return section("Runs side by side", shown, tag("div", charts, class_="charts"))
