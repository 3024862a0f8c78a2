"""Trains Mask R-CNN from scratch on nuclei, nuts and buildings at once on one device, and says what each reached.

    python benchmarks/objects_train.py RUNS --nuclei DIR --nuts DIR --buildings DIR [--out result.json]

Each is one chain of commands with a clock of its own: train, predict, evaluate. Those of which a folder is given run at
the same time. RUNS is the folder for run folders; what is there of an earlier time is overwritten.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chain import run_chain

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SPLITS = {"nuclei": ("test",), "nuts": ("train",), "buildings": ("train", "test")}
TARGETS = {"nuclei": ("test", "mask_ap50", 0.6), "nuts": ("train", "mask_ap50", 0.9)}
TARGETS |= {"buildings": ("train", "f1", 0.7)}
MOST_S = 480
PUBLISHED = {"1 GPU": 3.945, "20 CPUs": 9.937}  # seconds per image in training, of the ancestor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    for name in SPLITS:
        parser.add_argument(f"--{name}", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all jobs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in SPLITS if getattr(options, name) is not None]
    found: dict[str, dict] = {}
    writing = threading.Lock()

    def learn(name: str) -> None:
        result = chain(name, getattr(options, name).resolve(), options)
        with writing:  # after each, so that something is left where time runs out
            found[name] = result
            print(json.dumps({name: result}), flush=True)
            if options.out:
                told = {"published_s_per_image": PUBLISHED, "at_once": wanted, "jobs": found}
                options.out.write_text(json.dumps(told, indent=2) + "\n")

    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        list(pool.map(learn, wanted))
    sys.exit(0 if all(each["reached"] for each in found.values()) else 1)


def chain(name: str, root: Path, options: argparse.Namespace) -> dict:
    """Train, predict and evaluate; what fails is shown with the last lines it said."""
    job, run = EXAMPLES / f"{name}-maskrcnn.toml", options.runs / name
    settings = [f"data.root={root}", f"run={run}", *options.set]
    given = [word for setting in settings for word in ("--set", setting)]
    images = sorted(map(str, (root / "images").glob("*.jpg"))) if name == "nuts" else []
    device = ["--device", options.device]
    steps = {
        "train": ["train", str(job), "--overwrite", *device, *given],
        "predict": ["predict", str(run), *images, *device],
    }
    steps |= {f"evaluate {split}": ["evaluate", str(run), "--split", split] for split in SPLITS[name]}
    seconds, failed = run_chain(name, steps, options.runs / f"{name}.log")
    return failed or judged(name, run, seconds)


def judged(name: str, run: Path, seconds: dict[str, float]) -> dict:
    """Return what a run reached, beside what it should."""
    scores = json.loads((run / "scores.json").read_text())
    usage = json.loads((run / "usage.json").read_text())
    figures = {
        split: {
            "mask_ap50": scores[split]["mask"]["ap50"],
            "mask_ap": scores[split]["mask"]["ap"],
            "box_ap50": scores[split]["box"]["ap50"],
            "f1": scores[split]["map"]["f1"],
            "num_true": scores[split]["map"]["num_true"],
            "num_found": scores[split]["map"]["num_found"],
        }
        for split in SPLITS[name]
    }
    split, figure, least = TARGETS[name]
    total_s = round(sum(seconds.values()), 1)
    value = figures[split][figure]
    return {
        "scores": figures,
        "target": f"{figure} of {split} at least {least}, in {MOST_S} s",
        "reached": value is not None and value >= least and total_s <= MOST_S,
        "total_s": total_s,
        "seconds": seconds,
        "usage": usage,
    }


if __name__ == "__main__":
    main()
