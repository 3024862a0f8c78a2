"""What was measured side by side as text: the cells of every way, and what is to be said of it."""

from __future__ import annotations

from typing import Any

from outsize.measurement import Measurement
from outsize.report.markup import Part, tag
from outsize.report.tables import text_table
from outsize.units import format_bytes

Tree = dict[str, Any]
HEADS = ("way", "ms", "over plain*", "peak", "reserved", "predicted", "off", "predicted ms", "off")
_WIDTH = 120  # of the table in a terminal
_QUIET = 0.05  # apart by more than this, the machine had something else to do
_RATIOS = (
    "*Over plain: the median of the ratios within rounds, not the ratio of the medians in the column ms."
)


def cells(row: Tree) -> list[str]:
    """Return the cells of one way, as the table shows them."""
    return [
        row["label"],
        "–" if row["ms"] is None else f"{row['ms']:.2f}",
        _off(row["over_plain"], base=1.0),
        _bytes(row["peak_bytes"]),
        _bytes(row["reserved_bytes"]),
        _bytes(row.get("predicted_peak_bytes")),
        _off(row.get("peak_error")),
        "–" if row.get("predicted_ms") is None else f"{row['predicted_ms']:.2f}",
        _off(row.get("ms_error")),
    ]


def remarks_of(row: Tree) -> list[str]:
    """Say what ours was given, what it did with it, and which way is ahead of it there."""
    if not row.get("budget_bytes") or row["failed"] is not None:
        return []
    cap = "" if row["cap_bytes"] is None else ", and the process capped there"
    lines = [f"{row['label']}: {format_bytes(row['budget_bytes'])} given{cap}"]
    lines[0] += f"; {row['plan']['why'][-1]}"
    if row["peak_bytes"] and row["peak_bytes"] > row["budget_bytes"]:
        over = row["peak_bytes"] / row["budget_bytes"] - 1
        lines.append(f"{row['label']}: took {over:.1%} more than its budget")
    if row["behind"]:
        lines.append(f"{row['label']}: slower than {', '.join(row['behind'])} within the same memory")
    return lines + [f"{row['label']}: {text}" for text in row["notes"]]


def memory_table(measured: Measurement) -> str:
    """Draw what `bench memory` found for a person: each way that runs, and what is to be said of them."""
    found = tree_of(measured)
    failures = [
        f"{row['label']} does not run: {row['failed']}" for row in measured.rows if row["failed"] is not None
    ]
    control = found["control"]
    scatter = scatter_of(control)
    trust = [] if control is None else [f"plain again is {control - 1:+.1%} from plain eager"]
    trust = trust if scatter is None else [f"{scatter}; smaller differences say nothing"]
    remarks = [text for row in measured.rows for text in remarks_of(row)]
    rows = [cells(row) for row in measured.rows if row["failed"] is None]
    return text_table(HEADS, rows, [*failures, *trust, *remarks], title=basis(found), width=_WIDTH)


def scatter_of(control: float | None) -> str | None:
    """Say by how much times scatter, from plain again over plain; None where they do not, or that is not known."""
    if control is None or abs(control - 1) <= _QUIET:
        return None
    return f"times of this run scatter by {abs(control - 1):.0%}: so far is plain again from plain eager"


def basis(found: Tree) -> str:
    """Say what budgets and ratios are measured by."""
    plain, peak = found["plain"], format_bytes(found["plain"]["peak_bytes"])
    stays = f"{format_bytes(found['resident_bytes'])} stay between steps (weights, optimizer)"
    if not plain["measured"]:
        return f"Plain does not run here; budgets are shares of its predicted peak {peak}. {stays}."
    return f"Plain is {plain['label']}, the fastest that gives nothing up: {peak} at its peak. {stays}.\n{_RATIOS}"


def tree_of(measured: Measurement) -> Tree:
    """Return what `bench memory` found, as it is told and drawn."""
    return {**measured.about, "rows": measured.rows}


def about(measured: Measurement) -> list[tuple[str, Part]]:
    """Return what was measured and on what."""
    control = measured.about["control"]
    return [
        ("step", measured.job.text),
        ("device", f"{measured.machine.device}: {measured.machine.name}"),
        ("plain again", None if control is None else f"{control - 1:+.1%} over plain eager"),
        ("command", tag("code", measured.command)),
        ("measured", measured.when.replace("T", " ")),
    ]


def _bytes(value: int | None) -> str:
    return "–" if value is None else format_bytes(value)


def _off(value: float | None, base: float = 0.0) -> str:
    return "–" if value is None else f"{value - base:+.1%}"
