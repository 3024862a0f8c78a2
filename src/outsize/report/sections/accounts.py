"""Section on what verbs took: a timeline of the run, and what sharing each part among more would gain."""

from __future__ import annotations

import math

from outsize.report.amdahl import Part, of_this_training, parts_of, spans_of, speedup
from outsize.report.gather import Story
from outsize.report.markup import Markup, table, tag
from outsize.report.parts import percent, section
from outsize.report.timeline import draw_timeline
from outsize.units import format_seconds

_FACTORS = (2, 8, math.inf)
_LEAST = 0.01  # of the whole: what a row is made for


def show_accounts(story: Story) -> Markup | None:
    """Return the timeline of a run, and Amdahl's table."""
    accounts = of_this_training(story.accounts)
    whole_s = sum(each.seconds for each in accounts)
    if not whole_s:
        return None
    parts = [each for each in parts_of(accounts) if each.seconds >= _LEAST * whole_s]
    parts.sort(key=lambda each: -each.seconds)
    heads = ("", "time", "share", "side by side", "twice as many", "8 times as many", "any number")
    rows = [_row(each, whole_s) for each in parts]
    ended = [f"{each.verb} {each.outcome}" for each in accounts if each.outcome != "done"]
    why = (
        "How many times as fast all of it would be where a part is shared among more than it was, at full efficiency "
        "(Amdahl): ranks, threads or connections that shared it already are under side by side."
    )
    note = f"{format_seconds(whole_s)} in all; times in which no verb ran are cut out."
    return section(
        "What verbs took",
        draw_timeline(spans_of(accounts), "what ran when", left=190.0),
        tag("p", f"Not to their end: {', '.join(ended)}.", class_="note") if ended else None,
        tag("h4", "What more of it would gain"),
        table(heads, rows),
        tag("p", why, class_="note"),
        note=note,
    )


def _row(part: Part, whole_s: float) -> list[str]:
    share = part.seconds / whole_s
    gains = [speedup(share, factor) for factor in _FACTORS]
    shown = ["–" if math.isinf(gain) else f"{gain:.2f} x" for gain in gains]
    return [part.name, format_seconds(part.seconds), percent(share), str(part.parallel), *shown]
