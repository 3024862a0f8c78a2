"""Tables of what was measured: heads and cells, alike in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outsize.measurement import Measurement
from outsize.units import format_bytes, format_seconds

Cells = list[list[str]]
_NONE = "–"
NO_GPU = "no GPU"


def batch_table(measured: Measurement) -> tuple[Sequence[str], Cells, list[str]]:
    """Return heads, rows and remarks of `bench batch`."""
    heads = ["batch", "step", "time per sample", "samples/s", "±", "peak", "predicted"]
    heads += ["GPU use", "GPU memory", "host memory", "CPU load"]
    rows, remarks = [], []
    none = NO_GPU if measured.machine.gpu is None else _NONE
    for each in measured.rows:
        if each["failed"] is not None:
            remarks.append(f"batch {each['batch']}: {each['failed']}")
            continue
        step = each.get("step_s")
        rows.append(
            [
                str(each["batch"]),
                seconds(step),
                seconds(each.get("s_per_sample")),
                number(each.get("samples_per_s")),
                _NONE if step is None else f"{step['spread']:.0%}",
                size(each["peak_bytes"]),
                size(each["predicted_peak_bytes"]),
                none if each["gpu_use"] is None else f"{each['gpu_use']:.0%}",
                none if each["gpu_bytes"] is None else size(each["gpu_bytes"]),
                size(each["host_bytes"]),
                _NONE if each["cpu_load"] is None else f"{each['cpu_load']:.0%}",
            ]
        )
    return heads, rows, remarks


def text_table(
    heads: Sequence[str], rows: Cells, remarks: Sequence[str] = (), *, title: str = "", width: int = 120
) -> str:
    """Draw a table for a person, with what is to be said of it below."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=width, force_terminal=False, color_system=None)
    drawn = Table(box=box.SIMPLE_HEAD)
    for index, head in enumerate(heads):
        drawn.add_column(head, justify="right" if index else "left")
    for row in rows:
        drawn.add_row(*map(escape, row))
    with console.capture() as captured:
        console.print(drawn)
    above = [title] if title else []
    return "\n".join([*above, captured.get().rstrip(), *(f"  {each}" for each in remarks)])


def seconds(figure: Mapping[str, Any] | float | None) -> str:
    """Write a time, also one that was measured several times."""
    value = figure["median"] if isinstance(figure, Mapping) else figure
    return _NONE if value is None else format_seconds(value)


def number(figure: Mapping[str, Any] | float | None) -> str:
    """Write a number in three digits."""
    value = figure["median"] if isinstance(figure, Mapping) else figure
    return _NONE if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def size(value: int | None) -> str:
    """Write bytes; what is not known is a dash."""
    return _NONE if value is None else format_bytes(value)
