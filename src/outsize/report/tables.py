"""Tables of what was measured: heads and cells, alike in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outsize.measurement import Measurement
from outsize.units import format_bytes, format_seconds

Cells = list[list[str]]
_NONE = "–"
NO_GPU = "no GPU"
_NO_COST = 5e-4
_CROWDED = 1.25  # times its own time that computing takes, from which on that is worth a word


def batch_table(measured: Measurement) -> tuple[Sequence[str], Cells, list[str]]:
    """Return heads, rows and remarks of `bench batch`."""
    crowded = crowded_line(measured)
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
    return heads, rows, remarks + crowded


def scaling_table(measured: Measurement) -> tuple[Sequence[str], Cells, list[str]]:
    """Return heads, rows and remarks of `bench scaling`; what is lost is a share of the step."""
    lost = {
        "lost_beside_s": "side by side",
        "lost_straggling_s": "stragglers",
        "lost_communication_s": "communication",
        "lost_norm_s": "batch norm",
        "lost_input_s": "input",
    }
    heads = ["regime", "ranks", "batch", "samples/s", "step", "±", "efficiency", *lost.values()]
    rows = []
    for each in measured.rows:
        step, efficiency = each["step_s"], each["efficiency"]
        shares = [f"{each[name]['median'] / step['median']:+.1%}" for name in lost]
        known = [each["regime"], str(each["num_ranks"]), str(each["batch"]), number(each["samples_per_s"])]
        rows.append([*known, seconds(step), f"{step['spread']:.0%}", f"{efficiency['median']:.0%}", *shares])
    remarks = [
        "weak: the job's batch on each rank; strong: in all. Lost: a share of the step, medians of rounds"
    ]
    return heads, rows, remarks


_SHARING = {
    "whole": "alone, the whole device",
    "alone": "alone, within a share",
    "together": "together, a share each",
}


def share_table(measured: Measurement) -> tuple[Sequence[str], Cells, list[str]]:
    """Return heads, rows and remarks of `bench share`; the last says what sharing costs."""
    heads = [
        "",
        "processes",
        "memory of each",
        "peak",
        "step",
        "±",
        "over whole",
        "samples/s of all",
        "GPU use",
    ]
    on_cpu = measured.machine.gpu is None
    heads += ["cores of each"] if on_cpu else ["GPU memory"]
    rows, named = [], {each["way"]: each for each in measured.rows}
    for each in measured.rows:
        over = each["over_whole"]["median"] - 1
        rows.append(
            [
                _SHARING[each["way"]],
                str(each["processes"]),
                size(each["limit_bytes"]),
                size(each["peak_bytes"]),
                seconds(each["step_s"]),
                f"{each['step_s']['spread']:.0%}",
                _NONE if each["way"] == "whole" else f"{over:+.1%}",
                number(each["samples_per_s"]),
                NO_GPU if on_cpu else _NONE if each["gpu_use"] is None else f"{each['gpu_use']:.0%}",
                str(each["num_threads"]) if on_cpu else size(each["gpu_bytes"]),
            ]
        )
    together, num = named["together"], named["together"]["processes"]
    whole = together["throughput"]["median"]
    told = f"{num} processes at once make {whole:.2f} times the samples of one that has all; each step takes "
    remarks = [f"{told}{together['over_whole']['median']:.2f} times as long ({num} would be fair shares)"]
    if named["whole"]["why"] != together["why"]:
        remarks.append(f"within a share: {'; '.join(together['why'])}")
    return heads, rows, remarks + crowded_line(measured)


def text_table(
    heads: Sequence[str], rows: Cells, remarks: Sequence[str] = (), *, title: str = "", width: int = 200
) -> str:
    """Draw a table for a person, with what is to be said of it below."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=width, force_terminal=False, color_system=None)
    drawn = Table(box=box.SIMPLE_HEAD)
    for index, head in enumerate(heads):
        drawn.add_column(head, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*map(escape, row))
    with console.capture() as captured:
        console.print(drawn)
    above = [title] if title else []
    return "\n".join([*above, captured.get().rstrip(), *(f"  {each}" for each in remarks)])


def fit_table(measured: Measurement) -> tuple[Sequence[str], Cells, list[str]]:
    """Return heads, rows and remarks of `bench fit`."""
    heads = ["machine", "window", "batch", "memory", "outcome", "cost", "plain", "peak", "step"]
    heads += ["epoch", "measured", "peak", "step"]
    rows, remarks = [], []
    for each in measured.rows:
        over, steps = each.get("predicted_over_plain"), each.get("steps_per_epoch")
        step_s = each.get("predicted_step_s")
        rows.append(
            [
                each["machine"],
                f"{each['side_px']} px",
                str(each["batch"]),
                size(each["budget_bytes"]),
                each["outcome"] + ("" if each.get("exact", True) else ", approximate"),
                _NONE if over is None or abs(over) < _NO_COST else f"{over:+.1%}",
                size(each.get("predicted_plain_bytes")),
                size(each.get("predicted_peak_bytes")),
                seconds(step_s),
                seconds(None if step_s is None or steps is None else step_s * steps),
                each.get("measured_outcome", _NONE),
                size(each.get("peak_bytes")),
                seconds(each.get("step_s")),
            ]
        )
        if each["outcome"] == "does not run":
            remarks.append(f"{each['side_px']} px x {each['batch']}: {each['why']}")
    return heads, rows, remarks


def profile_lines(measured: Measurement) -> list[str]:
    """Say in lines where the time of a step goes, and what would help."""
    about = measured.about
    step = about["step_s"]
    shares = ", ".join(f"{name} {share:.1%}" for name, share in about["parts"].items() if share)
    lines = [f"a step of {measured.job.text} takes {seconds(step)} ± {step['spread']:.0%}: {shares}"]
    copied = [f"{name} {rate / 1e9:.1f} GB/s" for name, rate in about["copied_bytes_per_s"].items() if rate]
    lines += [f"copies: {', '.join(copied)}"] if copied else []
    lines += [] if measured.machine.gpu else ["there is no GPU: no copies, no launch gaps, no swapping"]
    return [*lines, *crowded_line(measured), f"verdict: {about['verdict']['sentence']}"]


def crowded_line(measured: Measurement) -> list[str]:
    """Say that others had the cores meanwhile, where that was so."""
    times = measured.about.get("crowding", 1.0)
    if times < _CROWDED:
        return []
    return [
        f"others were at work: computing took {times:.1f} times its own time; a quieter machine shows other times"
    ]


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
