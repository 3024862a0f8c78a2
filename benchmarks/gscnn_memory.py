"""G-SCNN where it does not fit: four images of 800 px in 16 GiB, and what 70 % of the memory costs at 600, 700, 800 px.

    python benchmarks/gscnn_memory.py --out benchmarks/results/DATE-h200-gscnn-memory.md

Each line is one `outsize bench memory` of examples/cityscapes-gscnn.toml in TF32 on made-up pixels: plain, plain again,
ours with all the memory that plain takes, and ours in a process that is capped, in turns. The study whose overheads
stand beside moved tensors by IBM's Large Model Support, eight images on four V100.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from outsize.commands.bench import memory
from outsize.progress import Reporter
from outsize.units import format_bytes

JOB = Path(__file__).parent.parent / "examples" / "cityscapes-gscnn.toml"
PUBLISHED = {600: (43.0, 105.0, 106.0), 700: (30.0, 72.8, 91.0)}  # per cent, of three machines
HEADS = (
    "px",
    "images",
    "way",
    "ms",
    "over plain",
    "over ours free",
    "peak",
    "reserved",
    "cap",
    "predicted peak",
)
HEADS += ("off", "predicted ms", "to the host", "published overhead")


def main() -> None:
    """Measure all sizes, print the table, and write it where asked."""
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
    parser.add_argument("--out", type=Path, default=None, help="table.md; figures go beside it as .json")
    options = parser.parse_args()
    settings = [(options.large, 4, options.cap)] if options.large else []
    settings += [(side, 2, options.share) for side in options.sides]
    found, start_s = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _draw_dataset(Path(folder))
        for side, batch, cap in settings:
            found.append(_measure(Path(folder), side, batch, cap, options))
            text = _text(found, time.perf_counter() - start_s)
            print(text, flush=True)
            if options.out is not None:  # after each, lest a later one take it along
                options.out.write_text(text)
                options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


def _measure(folder: Path, side: int, batch: int, cap: str, options: argparse.Namespace) -> dict[str, Any]:
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


def _text(found: list[dict[str, Any]], total_s: float) -> str:
    rule = " | ".join("---" for _ in HEADS)
    lines = [f"| {' | '.join(HEADS)} |", f"| {rule} |"]
    for each in found:
        free = next((row["ms"] for row in each["rows"] if row["way"] == "ours-1" and row["ms"]), None)
        lines += [f"| {' | '.join(_cells(each, row, free))} |" for row in each["rows"]]
    notes = []
    for each in found:
        what = each["setting"]
        for row in each["rows"]:
            name = f"{what['batch']} x {what['side_px']} px, {row['label']}"
            if row["failed"]:
                notes.append(f"- {name} does not run: {row['failed']}")
            elif row.get("plan"):
                exact = "exact" if row["plan"]["exact"] else "approximate"
                notes.append(f"- {name}: {exact}; {row['plan']['why'][-1]}")
                notes += [f"- {name}: {text}" for text in row["notes"]]
    machine, versions = found[0]["machine"], found[0]["versions"]
    where = f"{machine['name'] or machine['device']}, torch {versions['torch']}, {found[0]['setting']['precision']}"
    head = f"{where}, {found[0]['rounds']} rounds, {total_s:.0f} s in all"
    return "\n".join(["# G-SCNN in less memory", "", head, "", *lines, "", *notes, ""])


def _cells(found: dict[str, Any], row: dict[str, Any], free_ms: float | None) -> list[str]:
    what = found["setting"]
    capped = row.get("share", 0) is None and row["failed"] is None
    published = PUBLISHED.get(what["side_px"]) if capped and what["batch"] == 2 else None
    moved = row.get("moved")
    return [
        str(what["side_px"]),
        str(what["batch"]),
        row["label"],
        "does not run" if row["ms"] is None else f"{row['ms']:.1f}",
        _percent(row["over_plain"], 1.0),
        _percent(row["ms"] / free_ms if capped and free_ms and row["ms"] else None, 1.0),
        _size(row["peak_bytes"]),
        _size(row["reserved_bytes"]),
        _size(row["cap_bytes"]),
        _size(row.get("predicted_peak_bytes")),
        _percent(row.get("peak_error"), 0.0),
        "" if row.get("predicted_ms") is None else f"{row['predicted_ms']:.1f}",
        _size((row.get("plan") or {}).get("swap") and row["plan"]["swap"]["pinned_bytes"]) if moved else "",
        "" if published is None else ", ".join(f"+{each:g}%" for each in published),
    ]


def _percent(value: float | None, base: float) -> str:
    return "" if value is None else f"{value - base:+.1%}"


def _size(num_bytes: int | None) -> str:
    return "" if not num_bytes else format_bytes(num_bytes)


def _draw_dataset(folder: Path) -> None:
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
