"""What recomputing frees and what it costs: ours against plain, torch's checkpoint, swapping and torch.compile.

    python benchmarks/recompute_speed.py --out FOLDER --precisions bf16     # and again with tf32: 4 minutes each
    python benchmarks/recompute_speed.py --out FOLDER --models unet --ways plain again third half ours --limit 60
    python benchmarks/recompute_speed.py --out FOLDER --models smp:DeepLabV3Plus/resnet101 --side 512  # many small ones
    python benchmarks/recompute_speed.py --out FOLDER --device cpu --quick  # tiny, to see that it runs

Forward, loss and backward of one batch (4 windows of 800 x 800 px, channels last); no optimizer, for that is the same
in all. All ways run in turn in every round, in another order each, without waiting for the GPU within a round, as a
training does. Times are between CUDA events, medians over rounds; ratios are medians of the ratios within a round.
`plain again` is plain once more: how far its ratio is from 1 is how far to trust the others. Ways that take more than
twice as long as plain run in every fourth round.

  launched  time until the host has launched a step: where it is that of the step itself, the GPU waits for Python
  saved     memory allocated after forward less before: what waits for backward
  freed     share of that which a way does without, against plain
  peak      most memory allocated during the step, weights and gradients included

What does not fit the time limit is left out, and the table says so; results are written after each model and precision.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from recompute_table import as_extra, as_table, profile_extra, summary
from recompute_ways import FAILURES, TRUNK, WAYS, Compiler, Setting, Way, budget_of, make_way, text_of

from outsize.measure.memory import LiveBytes
from outsize.strategies import compiled

SLOW, EVERY, LEAST = 2.0, 4, 5  # times plain; rounds between two of a slow way; rounds at least
LATE = 0.6  # share of the time


def main() -> None:
    options = _options()
    if options.device == "cpu":
        compiled.BACKEND = "aot_eager"  # to see that it runs; nobody wants to wait for more
    end_s = time.perf_counter() + options.limit
    todo = [(name, precision) for precision in options.precisions for name in options.models]
    options.out.mkdir(parents=True, exist_ok=True)
    groups: list[dict[str, Any]] = []
    for number, (name, precision) in enumerate(todo):
        now_s = time.perf_counter()
        until_s = now_s + (end_s - now_s) / (len(todo) - number)
        groups.append(measure(name, precision, options, until_s))
        _write(groups, options)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    print("\n".join(as_table(group) for group in groups))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny networks and pictures")
    parser.add_argument("--models", nargs="+", default=["unet", TRUNK])
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "tf32"), default=["bf16", "tf32"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--side", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--limit", type=float, default=225.0, help="seconds for all of it, more or less")
    options = parser.parse_args()
    options.side = options.side or (64 if options.quick else 800)
    options.batch = options.batch or (2 if options.quick else 4)
    options.rounds = options.rounds or (5 if options.quick else 20)
    options.ways = [name for name in WAYS if name == "plain" or name in options.ways]
    return options


def measure(model: str, precision: str, options: argparse.Namespace, until_s: float) -> dict[str, Any]:
    """Measure all ways of one model in one precision."""
    start_s = time.perf_counter()
    setting = Setting(model, precision, options)
    ways: list[Way] = []
    compilers: dict[float | None, Compiler] = {}
    for name in options.ways:
        # compilation may take as long as it likes, but is not to begin late
        late = time.perf_counter() > start_s + LATE * (until_s - start_s)
        if late and "compile" in WAYS[name] and budget_of(name) not in compilers:
            ways.append(Way(name, nullcontext, failed="left out: no time"))
            continue
        way = make_way(setting, name, compilers)
        if way.failed is None:
            warm_up(setting, way, options.warmup)
        ways.append(way)
        print(f"{model} {precision} {name}: {way.setup_s} s {way.failed or ''}", file=sys.stderr, flush=True)
    found = {way.name: way for way in ways if way.failed is None}
    if "plain" in found:
        run_rounds(setting, list(found.values()), options.rounds, until_s)
    else:
        found = {}
    extra = {
        name: profile_extra(
            lambda: setting.step(found["plain"].forward),
            lambda name=name: setting.step(found[name].forward),  # type: ignore[misc]
            setting.forget,
            on_cuda=setting.device.type == "cuda",
        )
        for name in ("third", "ours")
        if name in found
    }
    num_parameters = sum(each.numel() for each in setting.model.parameters())
    return {
        "model": model,
        "precision": precision,
        "num_parameters": num_parameters,
        "num_blocks": len(setting.blocks),
        "ways": [summary(way, found) for way in ways if way.failed or way.name in found],
        "extra": extra,
        "took_s": round(time.perf_counter() - start_s, 1),
    }


def warm_up(setting: Setting, way: Way, num_steps: int) -> None:
    """Run a way a few times, the last time alone, to see its memory."""
    start_s = time.perf_counter()
    gc.collect()  # what the way before has left behind is not this one's
    try:
        for _ in range(num_steps):
            setting.forget()
            setting.step(way.forward)
        setting.forget()
        measure = _memory_cuda if setting.device.type == "cuda" else _memory_cpu
        way.saved_bytes, way.peak_bytes = measure(setting, way)
    except FAILURES as error:
        way.failed = text_of(error)
        setting.forget()
    way.setup_s = round(time.perf_counter() - start_s, 2)


def _memory_cuda(setting: Setting, way: Way) -> tuple[int, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    with way.forward():
        loss = setting.loss()
    saved_bytes = torch.cuda.memory_allocated() - before_bytes
    loss.backward()
    return saved_bytes, torch.cuda.max_memory_allocated()


def _memory_cpu(setting: Setting, way: Way) -> tuple[int, int] | tuple[None, None]:
    if "compiled" in way.name or "budget" in way.name:  # cannot be looked into
        return None, None
    with LiveBytes() as live:
        with way.forward():
            loss = setting.loss()
        saved_bytes = live.now_bytes
        loss.backward()
    return saved_bytes, live.peak_bytes


def run_rounds(setting: Setting, ways: list[Way], num_rounds: int, until_s: float) -> None:
    """Time all ways in turn; stops early, but never before a few rounds, at `until_s` of the clock."""
    slow: set[str] = set()
    for number in range(num_rounds):
        if number >= LEAST and time.perf_counter() > until_s:
            break
        turn = number % len(ways)
        marks = [
            (way, *_launch(setting, way))
            for way in (*ways[turn:], *ways[:turn])
            if way.name not in slow or number % EVERY == 0
        ]
        if setting.device.type == "cuda":
            torch.cuda.synchronize()
        for way, begin, end, host_ms in marks:
            # CUDA events know the time between them, clocks of a CPU the time
            way.rounds[number] = begin.elapsed_time(end) if setting.device.type == "cuda" else end - begin
            way.host_ms.append(host_ms)
        plain_ms = ways[0].rounds[number]
        slow |= {way.name for way in ways if number == 0 and way.rounds[0] > SLOW * plain_ms}


def _launch(setting: Setting, way: Way) -> tuple[Any, Any, float]:
    """Run a step without waiting for it; returns when it began and ended, and how long launching it took."""
    setting.forget()
    on_cuda = setting.device.type == "cuda"
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start_ms = 1e3 * time.perf_counter()
    if on_cuda:
        begin.record()
    setting.step(way.forward)
    if on_cuda:
        end.record()
    end_ms = 1e3 * time.perf_counter()
    return (begin, end, end_ms - start_ms) if on_cuda else (start_ms, end_ms, end_ms - start_ms)


def _write(groups: list[dict[str, Any]], options: argparse.Namespace) -> None:
    on_cuda = options.device == "cuda"
    about = {
        "machine": torch.cuda.get_device_name() if on_cuda else platform.processor() or platform.machine(),
        "num_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "command": " ".join(["python", *sys.argv]),
        "batch": options.batch,
        "side_px": options.side,
    }
    text = json.dumps({**about, "groups": groups}, indent=1, default=str)
    (options.out / "recompute_speed.json").write_text(text + "\n")
    lines = [f"- {key}: {value}" for key, value in about.items()]
    parts = [as_table(group) for group in groups] + [as_extra(group) for group in groups if group["extra"]]
    page = "\n".join(("# Recompute against the others", "", *lines, "", *parts))
    (options.out / "recompute_speed.md").write_text(page)


if __name__ == "__main__":
    main()
