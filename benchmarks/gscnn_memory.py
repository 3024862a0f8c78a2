"""G-SCNN where it does not fit: four images of 800 px in 16 GiB, and what 70 % of the memory costs at 600, 700, 800 px.

    python benchmarks/gscnn_memory.py --out benchmarks/results/DATE-h200-gscnn-memory.md

Each part is one `outsize bench memory` of examples/cityscapes-gscnn.toml in TF32 on made-up pixels: plain, plain again,
ours with all the memory that plain takes, and ours in a process that is capped, in turns. Its figures lie beside the
page as SIDE-BATCH.json, for `outsize compare`. The study whose overheads are told moved tensors by IBM's Large Model
Support, eight images on four V100.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from outsize.commands.bench import memory
from outsize.measurement import Measurement, write_measurement
from outsize.progress import Reporter
from outsize.report.measured import memory_table

JOB = Path(__file__).parent.parent / "examples" / "cityscapes-gscnn.toml"
PUBLISHED = {600: "43, 105 and 106 %", 700: "30, 72.8 and 91 %"}  # more time for a step, on three machines


def main() -> None:
    """Measure all sizes, print their tables, and write them where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--sides", type=int, nargs="*", default=[600, 700, 800], help="with 2 images and the share"
    )
    parser.add_argument("--share", default="70%", help="of plain's peak that the process may hold")
    parser.add_argument("--large", type=int, default=800, help="with 4 images and the cap; 0: not")
    parser.add_argument("--cap", default="16GiB")
    parser.add_argument("--width", type=int, default=64, help="of the network; less only to try this")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=None, help="page.md; figures go beside it")
    options = parser.parse_args()
    parts = [(options.large, 4, options.cap)] if options.large else []
    parts += [(side, 2, options.share) for side in options.sides]
    page = ["# G-SCNN in less memory", ""]
    with tempfile.TemporaryDirectory() as folder:
        draw_dataset(Path(folder))
        for side, batch, cap in parts:
            found = measured(Path(folder), side, batch, cap, options)
            page += [f"## {found.job.text}, capped at {cap}, on {found.machine.name}", ""]
            page += [f"    {line}" for line in memory_table(found).splitlines()] + [""]
            page += (
                [f"Published for moved tensors at {side} px: {PUBLISHED[side]}.", ""]
                if side in PUBLISHED
                else []
            )
            print("\n".join(page), flush=True)
            if options.out is not None:  # after each, or a later one would take it along
                options.out.write_text("\n".join(page))
                write_measurement(options.out.with_name(f"{options.out.stem}-{side}-{batch}.json"), found)


def measured(folder: Path, side: int, batch: int, cap: str, options: argparse.Namespace) -> Measurement:
    """Run the bench of one size."""
    settings = {
        "data.root": folder / "cityscapes",
        "model.width": options.width,
        "train.precision": "fp32",
        "train.tile_px": side,
        "train.batch": batch,
    }
    return memory(
        JOB,
        overrides=[f"{key}={value}" for key, value in settings.items()],
        device_name=options.device,
        out=folder / f"{side}-{batch}",
        budgets=f"1,{cap}",
        ways="plain,ours",
        rounds=options.rounds,
        reporter=Reporter("quiet"),
    )


def draw_dataset(folder: Path) -> None:
    """Write a picture for each split: bench reads none of them, but bands are those of a file."""
    for value, split in enumerate(("train", "val"), start=7):
        for kind, suffix, shape in (
            ("leftImg8bit",) * 2 + ((64, 64, 3),),
            ("gtFine", "gtFine_labelIds", (64, 64)),
        ):
            place = folder / "cityscapes" / kind / split / "town"
            place.mkdir(parents=True)
            Image.fromarray(np.full(shape, value, np.uint8)).save(place / f"town_000000_000000_{suffix}.png")


if __name__ == "__main__":
    main()
