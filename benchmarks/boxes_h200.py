"""All figures of boxes that need a GPU, in one call of under 8 minutes on an H200.

    python benchmarks/boxes_h200.py RUNS [--kitti DIR] [--minutes 4]

Speed comes first, alone on the device; then FastBox and FCOS learn the drawn streets at once, and FastBox real frames
(image_2 and label_2 below DIR) by heart. Results are RUNS/boxes_speed.json and RUNS/boxes_train.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--kitti", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training")
    parser.add_argument("--device", default="cuda")
    options, others = parser.parse_known_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    speed = ["--turns", "3", "--steps", "10", "--device", options.device]
    train = [str(options.runs), "--at-once", "--minutes", str(options.minutes), "--device", options.device]
    train += [] if options.kitti is None else ["--kitti", str(options.kitti)]
    codes = [
        run("boxes_speed", *speed, "--out", str(options.runs / "boxes_speed.json")),
        run("boxes_train", *train, "--out", str(options.runs / "boxes_train.json"), *others),
    ]
    sys.exit(max(codes))


def run(name: str, *words: str) -> int:
    return subprocess.run([sys.executable, str(HERE / f"{name}.py"), *words], check=False).returncode


if __name__ == "__main__":
    main()
