"""Trains a forecaster on half a day of rain and scores it on the other half, and the reverse, beside optical flow.

    python benchmarks/radar_nowcast.py FRAMES RUNS [--device auto] [--minutes 2.5] [--set KEY=VALUE] [--out result.json]

FRAMES is the folder of the 144 frames of 2020-10-31 of Mount Stapylton (dry after frame 75). A forecast starts in the
frame it sees last. The job is examples/radar-nowcast.toml; epochs are chosen by windows of frames that are not tested.

    forward    learnt from 0 to 28, chosen on 28 to 31, tested on forecasts that start in 48 to 65
    reverse    learnt from 54 on, chosen on 9 to 13, tested on forecasts that start in 24 to 43
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate
from outsize.commands.train import train
from outsize.data.radar import frame_files, frames_in_order
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.units import clock

JOB = Path(__file__).resolve().parents[1] / "examples" / "radar-nowcast.toml"
_KEPT = ("means", "methods", "leads", "thresholds", "flow", "num_forecasts")
WAYS = {"forward": ((0, 28), (28, 31), (48, 65)), "reverse": ((54, -1), (9, 13), (24, 43))}  # frames


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=2.5, help="of training, in each direction")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    began_s, found = time.perf_counter(), {}
    for way in options.ways.split(","):
        found[way] = in_one_way(way, options)
        print(table(way, found[way]), flush=True)
        if options.out:  # after each, so that something is left where time runs out
            told = {"total_s": time.perf_counter() - began_s, "set": options.set, "ways": found}
            options.out.write_text(json.dumps(told, indent=2) + "\n")
    print(f"{time.perf_counter() - began_s:.0f} s in all")


def in_one_way(way: str, options: argparse.Namespace) -> dict:
    """Train, predict and evaluate; then forecast once from files, as somebody does who waits for it."""
    run, quiet = options.runs / way, Reporter("quiet")
    settings = [f'data.root="{options.frames.resolve()}"', f'run="{run}"', *times(options.frames, way)]
    settings += [f"train.max_minutes={options.minutes}", *options.set]
    began_s = time.perf_counter()
    train(JOB, overrides=settings, device_name=options.device, mode="overwrite", reporter=quiet)
    trained_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    made = predict(run, [], out=None, overrides=(), device_name=options.device, reporter=quiet)
    predicted_s = time.perf_counter() - began_s
    scores = evaluate(run, split="test", reporter=quiet)
    seen = frame_files(options.frames)[:10]
    out = run / "once"
    shutil.rmtree(out, ignore_errors=True)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    predict(run, seen, out=out, overrides=(), device_name=options.device, reporter=quiet)
    once_s, once_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "trained_s": trained_s,
        "num_steps": max(each["step"] for each in lines),
        "validation": [each["mean_csi"] for each in lines if "mean_csi" in each],
        "predicted_s": predicted_s,
        "model_s": min(each["tiles_s"] for each in made),
        "once_s": once_s,
        "once_cpu_s": once_cpu_s,
        "scores": {
            key: scores[key] for key in ("means", "methods", "leads", "thresholds", "flow", "num_forecasts")
        },
    }


def times(folder: Path, way: str) -> list[str]:
    """Return the settings of a split: intervals by the times of frames."""
    section = load_job(JOB).data.frames
    frames, _ = frames_in_order(frame_files(folder), section)
    named = [clock(frame.time_s) for frame in frames]
    return [
        f'data.split.{name}_times=["{named[first]}/{named[last]}"]'
        for name, (first, last) in zip(("train", "val", "test"), WAYS[way], strict=True)
    ]


def table(way: str, found: dict) -> str:
    """Return CSI and FSS at the first threshold by lead, as Markdown."""
    scores, methods = found["scores"], ("model", "flow", "persistence")
    lines = [
        f"{way}: {found['num_steps']} steps in {found['trained_s']:.0f} s, {scores['num_forecasts']} forecasts",
        f"once from files: {found['once_s']:.2f} s, {found['once_cpu_s']:.2f} s CPU; model {found['model_s']:.3f} s",
        "",
        f"| lead | model CSI | {scores['flow']} | persistence | model FSS | {scores['flow']} | persistence |",
        "|---|---|---|---|---|---|---|",
    ]
    for lead, name in enumerate(scores["leads"]):
        figures = [scores["methods"][each][kind][lead][0] for kind in ("csi", "fss") for each in methods]
        lines.append(f"| {name} | " + " | ".join(f"{each:.3f}" for each in figures) + " |")
    means = [scores["means"][each][kind][0] for kind in ("csi", "fss") for each in methods]
    return "\n".join([*lines, "| mean | " + " | ".join(f"{each:.3f}" for each in means) + " |", ""])


if __name__ == "__main__":
    main()
