"""Trains detectors from scratch on drawn streets, and one on real frames by heart; one table of what each reached.

    python benchmarks/boxes_train.py RUNS [--kitti DIR] [--jobs fastbox fcos overfit] [--minutes 6.5] [--out FILE]

Streets are drawn once into RUNS/streets, as many for every call of the same size and number. Each job is one chain of
commands with a clock of its own: train, predict, evaluate; with --at-once they share the device. What --out holds of
other jobs stays, so that jobs may come in several calls. The real frames (image_2 and label_2 below DIR) are learnt and
scored on themselves.

KITTI's measure samples 41 recalls, and fewer than 41 objects do not reach them all: 21 cars found without a fault
have an average precision of 0.51. Frames that are learnt by heart are therefore counted four times each, beside the
plain figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chain import run_chain

from outsize.data.boxes import Boxes
from outsize.data.formats.boxed import read_kitti
from outsize.data.synthetic import draw_streets
from outsize.metrics.kitti import DIFFICULTIES, kitti_scores

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "kitti-fastbox-scratch.toml"
FCOS, RETINANET = "torchvision:fcos_resnet50_fpn", "torchvision:retinanet_resnet50_fpn_v2"
FASTER = "torchvision:fasterrcnn_resnet50_fpn_v2"
MODELS = {"fastbox": None, "fcos": FCOS, "retinanet": RETINANET, "fasterrcnn": FASTER, "overfit": None}
TARGETS = {"fastbox": 0.80, "overfit": 0.90}  # AP moderate of cars, 40 points
REPEATS = 4  # of frames that are too few


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--kitti", type=Path, default=None)
    parser.add_argument("--jobs", nargs="+", default=["fastbox", "fcos", "overfit"], choices=list(MODELS))
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--minutes", type=float, default=6.5, help="of training, for each job")
    parser.add_argument("--overfit-minutes", type=float, default=3.0, help="of learning real frames by heart")
    parser.add_argument("--num", type=int, default=2400, help="streets to learn from")
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--size", type=int, nargs=2, default=[375, 1242], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--encoder", default="vgg16_bn", help="of FastBox")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all jobs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in options.jobs if name != "overfit" or options.kitti is not None]
    start_s = time.perf_counter()
    streets = (
        options.runs / "streets" / f"{options.num}+{options.held_out}-{'x'.join(map(str, options.size))}"
    )
    if any(name != "overfit" for name in wanted) and not streets.is_dir():
        draw(streets, options)
        print(f"streets in {time.perf_counter() - start_s:.1f} s", flush=True)
    out = options.out or options.runs / "boxes_train.json"
    found = json.loads(out.read_text())["jobs"] if out.is_file() else {}
    writing = threading.Lock()

    def learn(name: str) -> None:
        result = chain(name, options.kitti if name == "overfit" else streets, options)
        with writing:  # after each, so that something is left where time runs out
            found[name] = result
            told = {"command": " ".join(sys.argv), "at_once": options.at_once, "jobs": found}
            out.write_text(json.dumps(told, indent=2) + "\n")
            print(table(found), flush=True)

    with ThreadPoolExecutor(max(1, len(wanted)) if options.at_once else 1) as pool:
        list(pool.map(learn, wanted))
    sys.exit(0 if all(found[name]["reached"] for name in wanted) else 1)


def draw(streets: Path, options: argparse.Namespace) -> None:
    """Draw streets beside their name, and name them when all are there."""
    made = streets.with_name(f"{streets.name}.part")
    many = {"size": tuple(options.size), "num_processes": options.processes}
    draw_streets(made, options.num + options.held_out, seed=11, **many)
    made.rename(streets)


def settings_of(name: str, root: Path, options: argparse.Namespace) -> list[str]:
    """Return what differs from the example."""
    height, width = (-(-side // 32) * 32 for side in options.size)
    held_out = options.held_out / (options.num + options.held_out)
    told = [f"data.root={root.resolve().as_posix()}", f"run={(options.runs / name).as_posix()}"]
    told += ["train.workers=6", f"train.max_minutes={options.minutes}", f"train.tile_px=[{height},{width}]"]
    told += [f"data.split.val={min(0.015, held_out)}", f"data.split.test={held_out}"]
    # twice the streets: validation and checkpoints take little of the time
    told += ["train.epochs=20", f"train.samples_per_epoch={2 * options.num}"]
    if MODELS[name]:
        told += [f"model={{name='{MODELS[name]}'}}", "train.lr=2e-4"]
    else:
        told += [f"model.encoder={options.encoder}"]
    if name == "overfit":
        told += ["data.split.val=0", "data.split.test=0", "train.augment=[]", "train.batch=13"]
        told += ["train.samples_per_epoch=390", "model.dropout=0.0", "train.tile_px=[384,1248]"]
        told += [f"train.max_minutes={options.overfit_minutes}", "train.epochs=50", "train.warmup_steps=50"]
    return [*told, *options.set]


def chain(name: str, root: Path, options: argparse.Namespace) -> dict:
    """Train, predict and evaluate; what fails is told with the last lines it said."""
    run, device = options.runs / name, ["--device", options.device]
    given = [word for setting in settings_of(name, root, options) for word in ("--set", setting)]
    split = "train" if name == "overfit" else "test"
    images = sorted(map(str, (root / "image_2").glob("*.png"))) if name == "overfit" else []
    steps = {
        "train": ["train", str(EXAMPLE), "--overwrite", *device, *given],
        "predict": ["predict", str(run), *images, *device, "--set", "predict.boxes.picture=false"],
        "evaluate": ["evaluate", str(run), "--split", split],
    }
    seconds, failed = run_chain(name, steps, options.runs / f"{name}.log")
    return failed or judged(name, root, run, split, seconds)


def judged(name: str, root: Path, run: Path, split: str, seconds: dict[str, float]) -> dict:
    """Return what a run reached, beside what it should."""
    scores = json.loads((run / "scores.json").read_text())[split]
    usage = json.loads((run / "usage.json").read_text())
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    cars = scores["kitti"]["Car"]
    result = {
        "moderate": {reading: cars["height"][reading]["moderate"] for reading in ("ap_11", "ap_40", "ap_41")},
        "ap_40": {label: rules["height"]["ap_40"] for label, rules in scores["kitti"].items()},
        "plain_ap_41": cars["plain"]["ap_41"],
        "num_valid": cars["height"]["num_valid"],
        "coco": {figure: scores["box"][figure] for figure in ("ap", "ap50", "ap75")},
        "num_steps": last.get("step"),
        "seconds": seconds,
        "total_s": round(sum(seconds.values()), 1),
        "usage": usage,
    }
    value = result["ap_40"]["Car"]["moderate"]
    if name == "overfit":
        result["counted_four_times"] = by_heart(root, run)
        value = result["counted_four_times"]["moderate"]
    least = TARGETS.get(name)
    reached = least is None or (value is not None and value >= least)
    return {**result, "target": least, "value": value, "reached": reached}


def by_heart(root: Path, run: Path) -> dict[str, float]:
    """Return the 40-point figures of cars where each frame counts several times."""
    ledger = json.loads((run / "predictions" / "predict.json").read_text())
    truth: list[Boxes] = []
    answers: list[Boxes] = []
    for entry in ledger["scenes"]:
        truth.append(read_kitti(root / "label_2" / f"{Path(entry['scene']).stem}.txt"))
        answers.append(read_kitti(Path(entry["kitti"]), 16))
    curves = kitti_scores(truth * REPEATS, answers * REPEATS, ("Car",)).curves
    return {each: round(curves["Car", each, "height"].ap("ap_40"), 6) for each in DIFFICULTIES}


def table(found: dict[str, dict]) -> str:
    """Lay out what jobs reached; cars by KITTI's 40 points."""
    lines = [
        "| job | easy | moderate | hard | COCO AP | AP50 | steps | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        if "failed" in each:
            lines.append(f"| {name} | failed: {each['failed']} |  |  |  |  |  |  |")
            continue
        own = each.get("counted_four_times") or each["ap_40"]["Car"]
        figures = [f"{own[key]:.3f}" if own[key] is not None else "-" for key in DIFFICULTIES]
        figures += [f"{each['coco'][key] or 0:.3f}" for key in ("ap", "ap50")]
        lines.append(f"| {name} | {' | '.join(figures)} | {each['num_steps']} | {each['total_s']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
