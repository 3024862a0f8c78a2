"""How fast street scenes are learnt: the package's training against a plain script of the same network, in one run.

    python benchmarks/street_speed.py --out benchmarks/results/2026-11-15-h200-street-speed   # .md and .json; 3 minutes
    python benchmarks/street_speed.py --root CAMVID          # real pictures, windows of their size
    python benchmarks/street_speed.py --device cpu --small   # tiny, to see that it runs

ERFNet learns from windows of 512 x 1024 px of pictures of 1024 x 2048, DeepLabv3+ with a ResNet-18 from 720 x 960 of
720 x 960, 8 at a time, 19 classes, AdamW. The plain script is eager, plane after plane, in torch's default precision,
with a DataLoader and torchvision's transforms v2. Ours is what `outsize train` does: its plan, its step, its loop
(`train.loop.fit`), its feed. Both change samples alike: scale 1/2 to 2, crop, flip, colours, blur; and have as many
workers.

  on the GPU   forward, backward and optimizer on a batch that is there; turns of a few steps of each, CUDA events
  end to end   from JPEG files; turns of many steps of each, while the workers of the other are stopped; the first
               steps of a turn are not counted, for their batches lie ready, nor is the first turn, in which ours
               keeps what it decodes
  waiting      share of the time that the loop waited for its next batch while the GPU had no work left

Figures are medians over turns, ratios medians of ratios of turns that follow one another.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from street_data import Streets, camvid, draw_streets
from street_ours import Ours
from street_plain import Pictures, PlainScript

from outsize.job import load_job
from outsize.models import build_model
from outsize.train.feed import get_processes_ready
from outsize.units import format_bytes

TARGET = 1.5
LR = 5e-4


@dataclass(frozen=True)
class Network:
    """What is trained, and on what."""

    title: str
    model: str
    picture_px: tuple[int, int]
    window_px: tuple[int, int]
    options: Mapping[str, Any]


NETWORKS = {
    "erfnet": Network("ERFNet", "erfnet", (1024, 2048), (512, 1024), {}),
    "deeplab": Network("DeepLabv3+ ResNet-18", "smp:DeepLabV3Plus/resnet18", (720, 960), (720, 960), {}),
}
SMALL = {
    "erfnet": Network("ERFNet", "erfnet", (128, 256), (64, 128), {"width": 4}),
    "deeplab": Network("DeepLabv3+ ResNet-18", "smp:DeepLabV3Plus/resnet18", (72, 96), (72, 96), {}),
}


class Enough(Exception):
    """There is no time for another turn."""


def main() -> None:
    options = _options()
    start_s = time.perf_counter()
    if options.device == "cuda":
        get_processes_ready()
    networks = SMALL if options.small else NETWORKS
    found = []
    with tempfile.TemporaryDirectory(prefix="street-speed-") as folder:
        for number, name in enumerate(options.networks):
            until_s = start_s + options.limit * (number + 1) / len(options.networks)
            found.append(measure(networks[name], Path(folder) / name, options, until_s))
            page = _tell(options, found, time.perf_counter() - start_s)  # now: time may run out in the next
            if options.device == "cuda":
                torch.cuda.empty_cache()
    print(page)


def _tell(options: argparse.Namespace, found: list[dict[str, Any]], took_s: float) -> str:
    """Write what was measured so far, and return it as a page."""
    about = _about(options, took_s)
    page = as_page(about, found)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".md").write_text(page)
        text = json.dumps({**about, "networks": found}, indent=1)
        options.out.with_suffix(".json").write_text(text + "\n")
    return page


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None, help="file to write, without its suffix")
    parser.add_argument("--root", type=Path, default=None, help="CamVid with labels of class numbers")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny networks and pictures")
    parser.add_argument(
        "--compile", action="store_true", help="let the planner compile blocks: takes minutes"
    )
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--pictures", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--timed", type=int, default=None, help="steps of a turn from files that count")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each, besides the first")
    parser.add_argument("--limit", type=float, default=165.0, help="seconds for all of it, more or less")
    options = parser.parse_args()
    small = options.small
    for name, full, tiny in (
        ("pictures", 160, 6),
        ("batch", 8, 2),
        ("workers", 16, 2),
        ("rounds", 5, 2),
        ("timed", 60, 4),
    ):
        if getattr(options, name) is None:
            setattr(options, name, tiny if small else full)
    # as many are made ahead as each worker makes two
    options.skipped = 4 if small else 10 * (-(-2 * options.workers // 10))
    return options


def measure(network: Network, folder: Path, options: argparse.Namespace, until_s: float) -> dict[str, Any]:
    """Measure both ways of one network."""
    began_s = time.perf_counter()
    if options.root is None:
        streets = draw_streets(folder, network.picture_px, options.pictures, options.workers)
        window_px = network.window_px
    else:
        streets = camvid(options.root)
        window_px = streets.size_px
    torch.manual_seed(0)
    model = build_model(network.model, num_classes=len(streets.classes), in_channels=3, **network.options)
    pictures = Pictures(streets.pairs("train"), streets.size_px, window_px, streets.ignored)
    plain = PlainScript(model, LR, pictures, options.batch, options.workers, options.device)
    job = load_job(_write_job(network, folder, streets, window_px, options))
    with stopped(plain.workers):
        ours = Ours(job, options)
    plain.begin()
    why = [*ours.plan.why, *(f"not {each.what}: {each.why}" for each in ours.plan.rejected)]
    _say(f"{network.title}: ready after {time.perf_counter() - began_s:.0f} s; {'; '.join(why)}")
    with closing(plain), closing(ours):
        with stopped(plain.workers):
            on_device = time_on_device(ours, plain, options)
        _say(f"{network.title}, ms a step on the device: {on_device['ms']}")
        end_to_end = time_end_to_end(ours, plain, options, until_s)
        _say(f"{network.title}, pictures/s end to end: {end_to_end['pictures_per_s']}")
    return {
        "network": network.title,
        "window_px": window_px,
        "picture_px": streets.size_px,
        "batch": options.batch,
        "num_parameters": sum(each.numel() for each in model.parameters()),
        "plan": why,
        "num_fused": 0
        if ours.plan.fuse is None
        else len(ours.plan.fuse.norms_with_relu + ours.plan.fuse.norms),
        "on_device": on_device,
        "end_to_end": end_to_end,
        "took_s": round(time.perf_counter() - began_s, 1),
    }


def _write_job(
    network: Network, folder: Path, streets: Streets, window_px: tuple[int, int], options: argparse.Namespace
) -> Path:
    """Write the job that ours is, as anybody would."""
    steps = options.skipped + options.timed
    model = "".join(f"{key} = {value!r}\n" for key, value in network.options.items())
    classes = "".join(f'[[data.classes]]\nname = "c{each}"\nvalue = {each}\n' for each in streets.classes)
    text = f"""
seed = 1
run = "{folder / "run"}"
[data]
format = "folders"
root = "{streets.root.resolve()}"
train = ["{streets.images.format(part="train")}"]
val = ["{streets.images.format(part="val")}"]
labels = "{streets.labels}"
ignore_value = {streets.ignored}
{classes}
[model]
name = "{network.model}"
{model}
[train]
epochs = {options.rounds + 1}
samples_per_epoch = {steps * options.batch}
tile_px = {list(window_px)}
batch = {options.batch}
lr = {LR}
schedule = "constant"
augment = ["scale", "flip", "jitter", "blur"]
workers = {options.workers}
compile = {str(options.compile).lower()}
[limits]
allow_approximate = true
"""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.toml"
    path.write_text(text)
    return path


def time_on_device(ours: Ours, plain: PlainScript, options: argparse.Namespace) -> dict[str, Any]:
    """Time steps on a batch that is on the device, in turn."""
    num_steps, num_turns, num_warm = (2, 3, 1) if options.small else (5, 12, 10)
    runs = {"ours": ours.on_device(), "plain": partial(plain.step, *ours.normalised())}
    seconds = _seconds_on_gpu if options.device == "cuda" else _seconds_on_cpu
    peaks = {}
    for name, run in runs.items():
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(num_warm):
            run()
        if options.device == "cuda":
            peaks[name] = torch.cuda.max_memory_allocated()
    turns: list[dict[str, float]] = []
    for number in range(num_turns):
        order = list(runs) if number % 2 else list(runs)[::-1]
        turns.append({name: 1e3 * seconds(runs[name], num_steps) / num_steps for name in order})
    return {
        "ms": {name: round(statistics.median(turn[name] for turn in turns), 3) for name in runs},
        "ratio": round(statistics.median(turn["plain"] / turn["ours"] for turn in turns), 3),
        "ratios": [round(turn["plain"] / turn["ours"], 3) for turn in turns],
        "peak_bytes": peaks,
    }


@contextmanager
def stopped(workers: Sequence[BaseProcess]) -> Iterator[None]:
    """Let processes stand still meanwhile: what they make ahead would take cores from those that are timed."""
    stop(workers)
    try:
        yield
    finally:
        go_on(workers)


def stop(workers: Sequence[BaseProcess]) -> None:
    """Let processes stand still."""
    _send(workers, signal.SIGSTOP)


def go_on(workers: Sequence[BaseProcess]) -> None:
    """Let processes that stand still go on."""
    _send(workers, signal.SIGCONT)


def _send(workers: Sequence[BaseProcess], what: signal.Signals) -> None:
    for each in workers:
        if each.pid is not None and each.is_alive():
            os.kill(each.pid, what)


def _seconds_on_gpu(run: Callable[[], object], num_steps: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(num_steps):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def _seconds_on_cpu(run: Callable[[], object], num_steps: int) -> float:
    start_s = time.perf_counter()
    for _ in range(num_steps):
        run()
    return time.perf_counter() - start_s


def time_end_to_end(
    ours: Ours, plain: PlainScript, options: argparse.Namespace, until_s: float
) -> dict[str, Any]:
    """Train from files, ours and the plain script in turn."""
    num_steps = options.skipped + options.timed
    theirs: list[list[tuple[float, float]]] = []
    mine: list[list[tuple[float, float]]] = []
    copies_s: list[list[float]] = []

    def between() -> None:
        if len(mine) > 2 and time.perf_counter() > until_s:
            raise Enough
        own = [each for each in active_children() if each not in plain.workers]
        with stopped(own):
            go_on(plain.workers)
            theirs.append(plain.turn(num_steps))
            stop(plain.workers)
        mine.append([])
        copies_s.append([])

    def log(record: Mapping[str, Any]) -> None:
        if record["kind"] == "step":
            mine[-1].append((record["wait_s"], record["step_s"]))
            copies_s[-1].append(record["copy_s"])

    try:
        ours.fit(between, log)
    except Enough:
        _say("no time for more turns")
    finally:
        go_on(active_children())  # or they would never end
    found = {}
    for name, turns in (("ours", mine[1:]), ("plain", theirs[1 : len(mine)])):
        counted = [turn[options.skipped :] for turn in turns]
        found[name] = [
            (
                options.batch * len(turn) / sum(step_s for _, step_s in turn),
                sum(wait_s for wait_s, _ in turn) / sum(step_s for _, step_s in turn),
            )
            for turn in counted
        ]
    ratios = [one[0] / other[0] for one, other in zip(found["ours"], found["plain"], strict=True)]
    return {
        "pictures_per_s": {
            name: round(statistics.median(speed for speed, _ in turns), 1) for name, turns in found.items()
        },
        "waiting": {
            name: round(statistics.median(share for _, share in turns), 4) for name, turns in found.items()
        },
        "copy_ms": round(1e3 * statistics.median(statistics.mean(each) for each in copies_s[1:]), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "waits": {name: [round(share, 4) for _, share in turns] for name, turns in found.items()},
        "num_steps": options.timed,
    }


def _about(options: argparse.Namespace, took_s: float) -> dict[str, Any]:
    on_cuda = options.device == "cuda"
    return {
        "machine": torch.cuda.get_device_name() if on_cuda else platform.processor() or platform.machine(),
        "num_cores": len(os.sched_getaffinity(0)),
        "shared_memory": format_bytes(shutil.disk_usage("/dev/shm").total),
        "workers": options.workers,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "compile": options.compile,
        "command": " ".join(["python", *sys.argv]),
        "took_s": round(took_s, 1),
    }


def as_page(about: dict[str, Any], found: list[dict[str, Any]]) -> str:
    """Lay the results out as a page."""
    lines = ["# Street scenes: our training against a plain script", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += ["", f"Wanted: at least {TARGET} times both, and waiting under 5 %.", ""]
    lines += ["| network | | ours | plain | ratio |", "|---|---|---|---|---|"]
    for each in found:
        device, files = each["on_device"], each["end_to_end"]
        height, width = each["window_px"]
        name = f"{each['network']}, {each['batch']} x {height} x {width} px"
        ms, speed, waits = device["ms"], files["pictures_per_s"], files["waiting"]
        lines.append(
            f"| {name} | step on the device | {ms['ours']} ms | {ms['plain']} ms | {device['ratio']} |"
        )
        what = f"end to end from {each['picture_px'][0]} x {each['picture_px'][1]} files"
        lines.append(
            f"| | {what} | {speed['ours']} pictures/s | {speed['plain']} pictures/s | {files['ratio']} |"
        )
        lines.append(f"| | waiting for data | {waits['ours']:.1%} | {waits['plain']:.1%} | |")
        lines.append(f"| | copying a batch to the device | {files['copy_ms']} ms | | |")
    lines += [""]
    for each in found:
        lines.append(f"- {each['network']}: {each['num_fused']} norms fused; plan: {'; '.join(each['plan'])}")
        lines.append(f"  ratios of turns: {each['on_device']['ratios']}, {each['end_to_end']['ratios']}")
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
