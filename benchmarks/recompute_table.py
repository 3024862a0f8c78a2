"""What `recompute_speed.py` found, summed up: ratios, tables, and where the time of our way goes."""

from __future__ import annotations

import cProfile
import pstats
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from recompute_ways import WAYS, Way
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from outsize.units import format_bytes

PLAIN = ("plain", "compiled")  # ways that recompute nothing
_TOP = 12
_COLUMNS = (
    "way",
    "ms",
    "over plain",
    "over fastest plain",
    "launched in ms",
    "saved",
    "freed",
    "peak",
    "steps",
)

Step = Callable[[], None]


def summary(way: Way, found: Mapping[str, Way]) -> dict[str, Any]:
    """Sum one way up, relative to plain eager and to the fastest way that recomputes nothing."""
    if way.failed is not None:
        return {"way": way.name, "failed": way.failed, "setup_s": way.setup_s}
    plain = found["plain"]
    fastest = min((found[name] for name in PLAIN if name in found), key=_median_ms)
    freed = None
    if way.saved_bytes is not None and plain.saved_bytes:
        freed = round(1 - way.saved_bytes / plain.saved_bytes, 4)
    return {
        "way": way.name,
        "ms": round(_median_ms(way), 3),
        "least_ms": round(min(way.rounds.values()), 3),
        "host_ms": round(statistics.median(way.host_ms), 3),
        "num_steps": len(way.rounds),
        "over_plain": _ratio(way, plain),
        "over_fastest_plain": _ratio(way, fastest),
        "fastest_plain": fastest.name,
        "saved_bytes": way.saved_bytes,
        "freed": freed,
        "peak_bytes": way.peak_bytes,
        "num_keys": way.keys,
        "stats": None if way.stats is None else _plain(asdict(way.stats)),
        "setup_s": way.setup_s,
        "rounds_ms": {number: round(ms, 3) for number, ms in way.rounds.items()},
    }


def _median_ms(way: Way) -> float:
    return statistics.median(way.rounds.values())


def _ratio(way: Way, other: Way) -> float:
    both = way.rounds.keys() & other.rounds.keys()
    return round(statistics.median(way.rounds[each] / other.rounds[each] for each in both), 4)


def _plain(stats: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(each) if isinstance(each, frozenset) else each for key, each in stats.items()}


def as_table(group: Mapping[str, Any]) -> str:
    """Lay one model and precision out as a Markdown table."""
    lines = [" | ".join(_COLUMNS), " | ".join("---" for _ in _COLUMNS)]
    for each in group["ways"]:
        name = WAYS[each["way"]]
        if "failed" in each:
            lines.append(f"{name} | {each['failed'][:80].replace('|', '/')}" + " |" * (len(_COLUMNS) - 2))
            continue
        cells = (
            name,
            f"{each['ms']:.2f}",
            f"{each['over_plain'] - 1:+.1%}",
            f"{each['over_fastest_plain'] - 1:+.1%}",
            f"{each['host_ms']:.1f}",
            "" if each["saved_bytes"] is None else format_bytes(each["saved_bytes"]),
            "" if each["freed"] is None else f"{each['freed']:.1%}",
            "" if each["peak_bytes"] is None else format_bytes(each["peak_bytes"]),
            str(each["num_steps"]),
        )
        lines.append(" | ".join(cells))
    title = f"{group['model']}, {group['precision']} ({group['num_parameters'] / 1e6:.1f} M parameters)"
    return "\n".join((f"### {title}", "", *(f"| {line} |" for line in lines), ""))


def as_extra(group: Mapping[str, Any]) -> str:
    """Lay out where the time of our way goes beyond that of plain."""
    lines = []
    for name, found in group["extra"].items():
        lines += [f"### Extra time of {WAYS[name]}: {group['model']}, {group['precision']}", ""]
        lines += [
            "One step under the profiler. Operations that are watched pass twice, before and after.",
            "",
        ]
        lines += _extra_tables(found)
    return "\n".join(lines)


def _extra_tables(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for title, rows in found.items():
        lines += [f"{title}:", "", "| ms more | ms | times (plain) | what |", "|---|---|---|---|"]
        for row in rows:
            what = row["what"].replace("|", "/")[:90]
            times = f"{row['times']} ({row['plain_times']})"
            lines.append(f"| {row['more_ms']:.3f} | {row['ms']:.3f} | {times} | {what} |")
        lines.append("")
    return lines


def profile_extra(plain: Step, ours: Step, forget: Step, *, on_cuda: bool) -> dict[str, list[dict[str, Any]]]:
    """Profile one step of each, and list what ours does more: kernels, operations on the host, Python functions."""
    found = []
    for step in (plain, ours):
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
        forget()
        with profile(activities=activities) as seen:
            step()
            if on_cuda:
                torch.cuda.synchronize()
        found.append(seen.key_averages())
    kernels, host = (
        [
            {
                each.key: (
                    (each.self_device_time_total if on_device else each.self_cpu_time_total) / 1e3,
                    each.count,
                )
                for each in table
                if (each.device_type == DeviceType.CPU) != on_device
            }
            for table in found
        ]
        for on_device in (True, False)
    )
    # backward in this thread, where it can be seen
    with torch.autograd.set_multithreading_enabled(False):
        python = [_python_ms(plain, forget), _python_ms(ours, forget)]
    parts = {"kernels, on the GPU": kernels, "operations, on the host": host, "Python functions": python}
    return {title: _more(*pair) for title, pair in parts.items() if pair[1]}


def _python_ms(step: Step, forget: Step) -> dict[str, tuple[float, int]]:
    forget()
    profiler = cProfile.Profile()
    profiler.runcall(step)
    rows = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return {
        f"{Path(file).parent.name}/{Path(file).name}:{line} {name}" if line else name: (1e3 * own_s, calls)
        for (file, line, name), (_, calls, own_s, _, _) in rows.items()
    }


def _more(plain: dict[str, tuple[float, int]], ours: dict[str, tuple[float, int]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for what, (ms, times) in ours.items():
        plain_ms, plain_times = plain.get(what, (0.0, 0))
        rows.append(
            {"what": what, "more_ms": ms - plain_ms, "ms": ms, "times": times, "plain_times": plain_times}
        )
    return sorted(rows, key=lambda row: -row["more_ms"])[:_TOP]
