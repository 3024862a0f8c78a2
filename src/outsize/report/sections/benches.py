"""Section about what was measured side by side: peak memory against step time of every way."""

from __future__ import annotations

import base64

from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, pairs, table, tag
from outsize.report.measured import HEADS, about, basis, cells, remarks_of, scatter_of, tree_of
from outsize.report.parts import section
from outsize.report.tables import scaling_table


def show_memory(story: Story) -> Markup | None:
    """Return picture and table of `bench memory`, where it was run."""
    if story.benched is None:
        return None
    found = tree_of(story.benched)
    rows = [cells(each) for each in found["rows"] if each["failed"] is None]
    failed: list[tuple[Part, Part]] = [
        (each["label"], each["failed"]) for each in found["rows"] if each["failed"] is not None
    ]
    remarks = [text for each in found["rows"] for text in remarks_of(each)]
    scatter = scatter_of(found["control"])
    remarks += [] if scatter is None else [scatter]
    return section(
        "Memory against time",
        _picture(story),
        table(HEADS, rows),
        table(("does not run", "why"), failed, class_="words") if failed else None,
        tag("ul", [tag("li", text) for text in remarks]) if remarks else None,
        pairs(about(story.benched)),
        note="One training step, all ways in turns on the same weights; medians over rounds. "
        f"Dotted: budgets of ours. {basis(found)}",
    )


def show_scaling(story: Story) -> Markup | None:
    """Return the table of `bench scaling`, where it was run."""
    if story.scaled is None:
        return None
    heads, rows, remarks = scaling_table(story.scaled)
    return section(
        "Scaling over ranks",
        table(heads, rows),
        tag("ul", [tag("li", text) for text in remarks]),
        pairs(
            [
                ("machine", story.scaled.machine.name),
                ("job", story.scaled.job.text),
                ("command", story.scaled.command),
            ]
        ),
        note="All ways in turns, on made-up pixels; communication is what backward does not hide.",
    )


def _picture(story: Story) -> Markup | None:
    path = story.run.bench / "memory.png"
    if not path.is_file():
        return None
    address = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    look = "max-width:100%;height:auto"
    return tag("img", src=address, alt="peak memory against step time of every way", style=look)
