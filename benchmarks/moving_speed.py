"""What moving 2 GiB to host memory and back costs: WiderResNet-38 in bfloat16, eager, nothing recomputed.

    python benchmarks/moving_speed.py [--gib 2] [--fuse] [--out benchmarks/results/DATE-h200-moving]

Plain and moved steps take turns. Moved is what is saved first, which is the largest and needed last; it leaves
and returns when the plan says. The share of copy time that lies under kernels is read from a trace of torch's
profiler, which is written beside the table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from plan_error import build
from plan_error_measured import Case, Network, make_ready
from plan_error_predicted import fuse_of, traced
from torch.profiler import ProfilerActivity, profile

from outsize.measure.machine.bandwidth import recall_or_measure
from outsize.plan.cost import StepCost
from outsize.plan.machines import find_machine
from outsize.plan.plan import Swap
from outsize.plan.search.choice import Choice
from outsize.plan.search.search import Search
from outsize.plan.search.timeline import Link, Timeline
from outsize.plan.times import Clock
from outsize.strategies.swap.traffic import Meter

GIB = 2**30
CASE = Case(Network("wider_resnet38"), 800, 4, bf16=True, training=True)
ROUNDS, STEPS = 8, 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan, measure in turns, look at a trace, and write what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--fuse", action="store_true", help="with layers fused, in both")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    device = torch.device("cuda", 0)
    torch.backends.cudnn.benchmark = False
    model = build(CASE.network)
    fuse = fuse_of(model, CASE, device) if options.fuse else None
    cost = traced(model, CASE, device, fuse)
    rates = recall_or_measure(device).rates()
    clock = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
    link = Link.of(rates)
    assert link is not None
    swap, timeline = plan_moves(cost, clock, link, options.gib * GIB)
    model.to(device)
    meter = Meter()
    runs = {
        "plain": make_ready(model, CASE, {"fuse": fuse}, device),
        "moved": make_ready(model, CASE, {"fuse": fuse, "swap": swap}, device, meter),
    }
    seen = measure({name: each.run for name, each in runs.items()}, device)
    share, trace = look(runs["moved"].run)
    counted = meter.read()
    assert counted is not None
    plain_ms, moved_ms = (statistics.median(seen[name]["ms"]) for name in ("plain", "moved"))
    over = statistics.median(b / a for a, b in zip(seen["plain"]["ms"], seen["moved"]["ms"], strict=True))
    step_s = sum(map(clock.op_s, cost.facts.ops))
    found = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "fused": options.fuse,
        "moved_gib": sum(each.size_bytes for each in swap.moved) / GIB,
        "num_moved": len(swap.moved),
        "plain_ms": plain_ms,
        "moved_ms": moved_ms,
        "over": over - 1,
        "plain_peak_gib": seen["plain"]["peak"] / GIB,
        "moved_peak_gib": seen["moved"]["peak"] / GIB,
        "predicted_peak_gib": timeline.peak_bytes / GIB,
        "predicted_over": timeline.stall_s / step_s,
        "under_kernels": share,
        "pinned_planned_bytes": swap.pinned_bytes,
        "pinned_bytes": counted.most_pinned_bytes,
        "counted_on_gb_s": [link.to_host_bytes_per_s / 1e9, link.to_device_bytes_per_s / 1e9],
    }
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        with gzip.open(options.out.with_name(options.out.name + "-trace.json.gz"), "wt") as file:
            file.write(trace)


def plan_moves(cost: StepCost, clock: Clock, link: Link, num_bytes: float) -> tuple[Swap, Timeline]:
    """Return the moves of what is saved first, within the least memory that is predicted to cost little."""
    step_s = sum(map(clock.op_s, cost.facts.ops))
    peak_bytes = cost.peak_bytes()
    best: tuple[Swap, Timeline] | None = None
    for share in range(100):
        search = Search(cost, (), clock.op_s, link, peak_bytes - share / 50 * num_bytes)
        found = search.timed(_saved_first(search, num_bytes))
        if found is None:
            break
        if found.timeline.stall_s <= 0.03 * step_s:
            timeline = search.postponed(found).timeline
            best = timeline.as_swap(search.points), timeline
    assert best is not None, "nothing can be moved"
    return best


def _saved_first(search: Search, num_bytes: float) -> Choice:
    choice, left_bytes = Choice(search.plain), num_bytes
    for each in search.points.movable:
        if left_bytes > 0:
            choice.take(each)
            left_bytes -= each.size_bytes
    return choice


def measure(runs: dict[str, Callable[[], object]], device: torch.device) -> dict[str, dict[str, Any]]:
    """Return times of both in turns, and the peaks."""
    seen: dict[str, dict[str, Any]] = {name: {"ms": [], "peak": 0} for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            run()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(STEPS):
                run()
            end.record()
            torch.cuda.synchronize(device)
            if number:
                seen[name]["ms"].append(begin.elapsed_time(end) / STEPS)
                seen[name]["peak"] = max(seen[name]["peak"], torch.cuda.max_memory_allocated(device))
    return seen


def look(run: Callable[[], object]) -> tuple[float, str]:
    """Return the share of copy time under kernels, and the trace of two steps that tells it."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(2):
            run()
        torch.cuda.synchronize()
    path = Path("/tmp/outsize-moving-trace.json")
    seen.export_chrome_trace(str(path))
    text = path.read_text()
    path.unlink()
    events = [each for each in json.loads(text)["traceEvents"] if "dur" in each]
    kernels = sorted((each["ts"], each["ts"] + each["dur"]) for each in events if each.get("cat") == "kernel")
    copies = [
        (each["ts"], each["ts"] + each["dur"])
        for each in events
        if each.get("cat") == "gpu_memcpy" and ("DtoH" in each["name"] or "HtoD" in each["name"])
    ]
    merged: list[list[float]] = []
    for start, end in kernels:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    under = sum(
        max(0.0, min(end, stop) - max(start, begin)) for start, end in copies for begin, stop in merged
    )
    return under / max(sum(end - start for start, end in copies), 1e-9), text


if __name__ == "__main__":
    main()
