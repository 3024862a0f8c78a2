"""The figures that a change of the whole must keep, in one call of ten minutes on one GPU, beside those recorded.

    python benchmarks/on_one_gpu.py --out benchmarks/results/DATE-h200-kept.json [--folder /dev/shm] [--run NUCLEI_RUN]
    python benchmarks/on_one_gpu.py --small            # tiny, on a CPU, to see that it runs; its figures mean nothing

    scene_speed    file to map, plain and deflate          bench memory   the U-Net in 50 and 25 % of its activations
    street_speed   a step of DeepLabv3+, and from files    objects_speed  Mask R-CNN of a run, if --run names one
    first_step     seconds before the first step, and nvidia-smi's peak

Each is a process of its own with a limit of time; what does not end is a row without a figure, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
_ALLOWED = 0.03  # share by which a figure may be worse than the recorded one
_CLASSES = 19
_JOB = """\
task = "segment"
run = "{run}"

[data]
images = ["images/*.png"]
labels = "../labels/{{stem}}.png"
bands = ["red", "green", "blue"]

[data.split]
by = "scene"
val = 0.25
test = 0.25

{classes}
[model]
name = "unet"
width = {width}

[train]
epochs = 100
samples_per_epoch = 400
tile_px = {side}
batch = 4
optimizer = "adamw"
"""


@dataclass(frozen=True)
class Figure:
    """One figure of a benchmark: what was recorded on an H200, and what was found now."""

    name: str
    unit: str
    recorded: float | None  # None: there is none to compare with
    found: float | None = None
    why: str = ""  # why there is none

    def row(self) -> str:
        """Return it as a row of the table."""
        known = "–" if self.recorded is None else f"{self.recorded:.4g}"
        if self.found is None:
            return f"| {self.name} | {known} {self.unit} | – | {self.why} |"
        off = "" if self.recorded is None else f"{self.found / self.recorded - 1:+.1%}"
        far = " over" if self.recorded is not None and self.found > (1 + _ALLOWED) * self.recorded else ""
        return f"| {self.name} | {known} {self.unit} | {self.found:.4g} {self.unit} | {off}{far} |"


@dataclass(frozen=True)
class Part:
    """One benchmark: its command, its time, and how its figures are read from what it leaves."""

    command: Sequence[str]
    limit_s: float
    figures: tuple[Figure, ...]
    read: Callable[[str], Sequence[float | None]]  # from what it printed; None: it does not fit


def run_part(part: Part) -> list[Figure]:
    """Run a benchmark and return its figures; where it fails, its last line is the reason."""
    began_s = time.perf_counter()
    try:
        done = subprocess.run(part.command, capture_output=True, text=True, timeout=part.limit_s, check=False)
        why = (done.stderr.strip().splitlines() or ["no word"])[-1] if done.returncode else ""
        values = () if why else part.read(done.stdout)
    except subprocess.TimeoutExpired:
        values, why = (), f"not done within {part.limit_s:.0f} s"
    print(
        f"{time.perf_counter() - began_s:5.0f} s  {' '.join(map(str, part.command[1:]))}  {why}", flush=True
    )
    if not values:
        return [Figure(each.name, each.unit, each.recorded, why=why[:160]) for each in part.figures]
    pairs = zip(part.figures, values, strict=True)
    return [
        Figure(each.name, each.unit, each.recorded, value, "" if value is not None else "does not run")
        for each, value in pairs
    ]


def parts(folder: Path, run: Path | None, *, small: bool) -> Iterator[Part]:
    """Yield the benchmarks, cheapest first."""
    python, device = sys.executable, "cpu" if small else "auto"
    for kind, recorded in (("deflate", 0.4177), ("none", 0.494)):
        left = folder / f"scene-{kind}.json"
        sizes = ("--side", "512", "--levels", "2", "--width", "4") if small else ()
        yield Part(
            (python, str(HERE / "scene_speed.py"), "--compress", kind, "--out", str(left), *sizes),
            100,
            (
                Figure(f"scene to map, {kind}", "s", recorded),
                Figure(f"  over the bare model, {kind}", "x", recorded / 0.3464),
            ),
            lambda _, left=left: [_tree(left)["ours"]["median_s"], _tree(left)["ours_over_bare"]],
        )
    job = write_job(folder, small=small)
    yield Part(
        (python, str(HERE / "first_step.py"), str(job), "--limits", "4GiB", "--device", device),
        110,
        (
            Figure("first step after, planning", "s", 23.6),
            Figure("  a remembered plan", "s", None),
            Figure("  nvidia-smi's peak of 4 GiB given", "MiB", 5355),
        ),
        _first_step,
    )
    street = folder / "street"
    how = ("--small", "--device", "cpu", "--limit", "30") if small else ("--limit", "100")
    yield Part(
        (python, str(HERE / "street_speed.py"), "--networks", "deeplab", "--out", str(street), *how),
        150,
        (
            Figure("DeepLabv3+, a step on the GPU", "ms", 21.56),
            Figure("  from files, a picture", "ms", 1e3 / 351.8),
        ),
        lambda _: _street(_tree(street.with_suffix(".json"))),
    )
    if run is not None:
        found = folder / "objects.json"
        yield Part(
            (python, str(HERE / "objects_speed.py"), str(run), "--out", str(found), "--device", device),
            80,
            (
                Figure("Mask R-CNN, bf16, 4 x 1024 x 1024 px", "ms", 159.98),
                Figure("  in float32", "ms", 182.09),
            ),
            lambda _: [_tree(found)["ms"][each] for each in ("bf16", "fp32")],
        )
    bench = [
        python,
        "-m",
        "outsize",
        "bench",
        "memory",
        str(job),
        "--ways",
        "plain,ours",
        "--budgets",
        "0.5,0.25",
    ]
    yield Part(
        (*bench, "--rounds", "2", "--device", device, "--out", str(folder / "memory")),
        200,
        (
            Figure("U-Net in 50 % of its activations", "ms", 32.79),
            Figure("  in 25 %", "ms", 40.91),
            Figure("  its peak in 25 %", "GiB", 2091036160 / 2**30),
        ),
        lambda _: _memory(_tree(folder / "memory" / "bench" / "memory.json")),
    )


def write_job(folder: Path, *, small: bool) -> Path:
    """Draw a few pictures with labels and write the job of the U-Net that was measured before."""
    side, width = (64, 4) if small else (800, 64)
    rng = np.random.default_rng(0)
    for name, shape in (("images", (side, side, 3)), ("labels", (side, side))):
        (folder / name).mkdir()
        for number in range(8):
            coarse = rng.integers(
                0, 255 if len(shape) == 3 else _CLASSES, [each // 8 or each for each in shape]
            )
            pixels = coarse.repeat(8, 0).repeat(8, 1)[:side, :side].astype(np.uint8)
            pixels = np.broadcast_to(pixels[..., :1], shape) if len(shape) == 3 else pixels
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / name / f"{number}.png")
    tables = [f'[[data.classes]]\nname = "class {number}"\nvalue = {number}\n' for number in range(_CLASSES)]
    job = folder / "job.toml"
    text = _JOB.format(run=(folder / "run").as_posix(), classes="\n".join(tables), width=width, side=side)
    job.write_text(text, encoding="utf-8")
    return job


def _tree(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _first_step(printed: str) -> list[float]:
    rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "GiB |" in line]
    (made, remembered) = rows
    return [float(made[3].split()[0]), float(remembered[3].split()[0]), float(made[4])]


def _street(tree: Any) -> list[float]:
    (network,) = tree["networks"]
    return [network["on_device"]["ms"]["ours"], 1e3 / network["end_to_end"]["pictures_per_s"]["ours"]]


def _memory(tree: Any) -> list[float | None]:
    rows = {row["way"]: row for row in tree["rows"]}
    half, quarter = rows["ours-0.5"], rows["ours-0.25"]
    peak_bytes = quarter["peak_bytes"]
    return [half["ms"], quarter["ms"], None if peak_bytes is None else peak_bytes / 2**30]


def main() -> None:
    """Print the table, and leave it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="where scenes and pictures are drawn")
    parser.add_argument("--run", type=Path, default=None, help="a trained run of task instances")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        found = [
            each for part in parts(Path(folder), asked.run, small=asked.small) for each in run_part(part)
        ]
    print(f"\n| what | recorded | now | more than {_ALLOWED:.0%} worse is over |\n|---|---|---|---|")
    print("\n".join(each.row() for each in found))
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
