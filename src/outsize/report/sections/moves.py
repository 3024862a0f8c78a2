"""The section about tensors that wait in host memory: how much was moved, how fast, and what it cost."""

from __future__ import annotations

from typing import Any

from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, pairs
from outsize.report.parts import percent, section
from outsize.units import format_bytes, format_seconds

Tree = dict[str, Any]
_SUMMED = (
    "num_out", "out_bytes", "num_in", "in_bytes", "num_on_demand", "num_full", "full_bytes", "num_resident",
    "num_unmet", "num_changed",
)  # fmt: skip


def show_moves(story: Story) -> Markup | None:
    """Return what the training moved to host memory and back, as its epochs logged it."""
    counted = [each["moved"] for each in story.epochs if each.get("moved")]
    num_forwards = sum(each["num_forwards"] for each in counted)
    if not num_forwards:
        return None
    total = {name: sum(each[name] for each in counted) for name in _SUMMED}
    note = (
        "Tensors that backward needs left the device in forward and came back in time. Rates and waits are those of "
        "the steps that were timed, one of fifty."
    )
    rows: list[tuple[str, Part]] = [
        ("to the host, each forward", _each(total["out_bytes"], total["num_out"], num_forwards)),
        ("back to the device", _each(total["in_bytes"], total["num_in"], num_forwards)),
        *_times(counted),
        ("came back late", percent(total["num_on_demand"] / total["num_in"]) if total["num_in"] else None),
        ("host memory", _pinned(counted[-1])),
        *_not_as_planned(total),
    ]
    return section("Moved to host memory", pairs(rows), note=note)


def _each(num_bytes: int, num: int, num_forwards: int) -> str:
    return f"{num / num_forwards:.4g} tensors, {format_bytes(num_bytes / num_forwards)}"


def _times(counted: list[Tree]) -> list[tuple[str, Part]]:
    """Return rates and waits of the forwards that were timed, each epoch by its number of them."""
    timed = [each for each in counted if each["num_timed"] and each["copy_s"]]
    num_timed = sum(each["num_timed"] for each in timed)
    if not num_timed:
        return []
    copy_s = sum(each["copy_s"] for each in timed)
    stall_s = sum(each["stall_s"] or 0.0 for each in timed)
    num_stalls = sum(each["num_stalls"] or 0 for each in timed) / num_timed
    waits = f"{num_stalls:.4g} times each forward, {format_seconds(stall_s / num_timed)} in all"
    return [
        ("speed", ", ".join(_speeds(timed))),
        ("compute waited", waits),
        ("copies under kernels", percent(max(0.0, 1 - stall_s / copy_s))),
    ]


def _speeds(timed: list[Tree]) -> list[str]:
    found = []
    for name, way in (("out_bytes_per_s", "out"), ("in_bytes_per_s", "back")):
        rates = [(each[name], each["num_timed"]) for each in timed if each[name]]
        if rates:
            mean = sum(rate * num for rate, num in rates) / sum(num for _, num in rates)
            found.append(f"{mean / 1e9:.3g} GB/s {way}")
    return found


def _pinned(counted: Tree) -> str:
    most, planned = counted["most_pinned_bytes"], counted["planned_pinned_bytes"]
    return f"{format_bytes(most)} used of {format_bytes(planned)} planned"


def _not_as_planned(total: Tree) -> list[tuple[str, Part]]:
    full = f"{total['num_full']:,} ({format_bytes(total['full_bytes'])})" if total["num_full"] else None
    return [
        ("stayed, host memory full", full),
        ("stayed, not plain memory", total["num_resident"] or None),
        ("planned and not saved", total["num_unmet"] or None),
        ("of another size than planned", total["num_changed"] or None),
    ]
