"""Section about a tuning: its trials, which key mattered, and which of its values did well."""

from __future__ import annotations

from outsize.report.gather import Story
from outsize.report.markup import Markup, table, tag
from outsize.report.parts import section
from outsize.report.tuned import draw_importance, draw_slice, trials_table


def show_tuning(story: Story) -> Markup | None:
    """Return the trials of a tuning as table and pictures."""
    tuned = story.tuned
    if tuned is None:
        return None
    heads, rows, remarks = trials_table(tuned)
    best = tuned.best
    parts = [table(heads, rows), *(tag("p", each, class_="note") for each in remarks)]
    if tuned.importance:
        parts += [tag("h4", "What mattered"), tag("div", draw_importance(tuned.importance), class_="charts")]
    if len(tuned.done) > 1:
        slices = [draw_slice(tuned, key) for key in tuned.keys]
        parts += [tag("h4", f"{tuned.score_name} over each key"), tag("div", slices, class_="charts")]
    found = (
        "no trial has a score"
        if best is None
        else f"the best is trial {best['number']}, the job tune/best.toml"
    )
    note = f"{len(tuned.rows)} trials; {found}. What mattered is the share of each key in the differences of scores."
    return section("Tuning", *parts, note=note)
