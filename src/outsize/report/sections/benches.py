"""Sections about what was measured side by side: ways in memory and time, ranks, processes that share."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.measurement import Measurement
from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, pairs, table, tag
from outsize.report.measured import HEADS, about, basis, cells, remarks_of, scatter_of, tree_of
from outsize.report.parts import picture_of, section
from outsize.report.tables import Cells, scaling_table, share_table


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
        picture_of(story.run.bench / "memory.png", "peak memory against step time of every way"),
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
    return _tabled(
        "Scaling over ranks",
        story.scaled,
        scaling_table(story.scaled),
        "All ways in turns, on made-up pixels; communication is what backward does not hide.",
    )


def show_sharing(story: Story) -> Markup | None:
    """Return the table of `bench share`, where it was run."""
    if story.shared is None:
        return None
    note = "All ways in turns, on made-up pixels; a process within a share may hold no more memory than that."
    return _tabled("Sharing the device", story.shared, share_table(story.shared), note)


def _tabled(
    title: str, measured: Measurement, found: tuple[Sequence[str], Cells, list[str]], note: str
) -> Markup:
    heads, rows, remarks = found
    facts = [("machine", measured.machine.name), ("job", measured.job.text), ("command", measured.command)]
    told = tag("ul", [tag("li", text) for text in remarks])
    return section(title, table(heads, rows), told, pairs(facts), note=note)
