"""Section about stages: what each rank of a pipeline did in one step, as predicted and as measured."""

from __future__ import annotations

from outsize.report.gather import Story
from outsize.report.markup import Markup, tag
from outsize.report.parts import section
from outsize.report.schedule import Slice, draw_schedule
from outsize.units import format_count, format_seconds

_ABOUT = "Grey is where a rank waits: for the pipeline to fill and drain, and for other ranks."


def show_stages(story: Story) -> Markup | None:
    """Return both pictures of a step, each to its own scale, with how long it takes and how much of it ranks wait."""
    found = story.schedule
    if not found:
        return None
    num_micro, num_ranks = found["num_micro"], found["num_ranks"]
    micro = "1 micro-batch" if num_micro == 1 else f"{num_micro} micro-batches"
    about = f"{format_count(num_ranks, 'rank')}, {micro}, {found['schedule']}. {_ABOUT}"
    pictures = []
    for name in ("predicted", "measured"):
        slices = [Slice(*each) for each in found[name]]
        step_s = max(each.end_s for each in slices)
        busy_s = sum(each.end_s - each.start_s for each in slices)
        waits = max(0.0, 1 - busy_s / (num_ranks * step_s))
        which = f", step {found['step']}" if name == "measured" else ""
        title = f"{name}{which}: {format_seconds(step_s)}, ranks wait {waits:.0%}"
        pictures.append(draw_schedule(slices, title))
    return section("Stages", tag("p", about, class_="note"), tag("div", pictures))
