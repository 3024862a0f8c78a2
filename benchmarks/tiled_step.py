"""One training step on a large image, whole against tiled: the same loss and gradients, at the memory of one tile.

    python benchmarks/tiled_step.py [--side 4096] [--device cpu] [--levels 3] [--width 2] [--core 512] [--out r.json]

In float64, U-Net without batch norm, each step in a process of its own after a small one to warm up:
  whole     the image at once
  tiled     one tile after another
  one_tile  an image of the size of one tile (core and halo), at once: what the tiled step is to peak at

The peak is that of the step alone, above model and image: resident memory on the CPU (where it holds the workspace
of convolutions, too), memory allocated by torch on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.plan.plan import Plan, Tiling
from outsize.strategies.compose import Step, Terms, compose
from outsize.tasks.segment.terms import count_terms, make_loss_terms
from outsize.tiles.grid import cover, redundancy
from outsize.tiles.halo import derive_halo

BANDS, CLASSES, LOSS = 4, 3, "cross_entropy"
WAYS = ("whole", "tiled", "one_tile")
# What is freed goes back to the system at once, or resident memory would also count what only the C library holds.
_ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--core", type=int, default=512)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--way", choices=WAYS, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        print(json.dumps(_measure(options)))
        return
    text = json.dumps(_compare(options), indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    ways: dict[str, dict[str, float]] = {}
    found: dict[str, dict[str, Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            path = Path(folder) / f"{way}.pt"
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way, "--found", str(path)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT)
            ways[way] = json.loads(done.stdout.splitlines()[-1])
            print(way, ways[way], file=sys.stderr, flush=True)
            found[way] = torch.load(path, weights_only=True)
    apart = {name: _apart(found["tiled"][name], value) for name, value in found["whole"].items()}
    loss = apart.pop("loss")
    worst = max(apart, key=lambda name: apart[name])
    tiling = _tiling(_model(options), options.core)
    return {
        "setting": {key: getattr(options, key) for key in ("side", "device", "levels", "width", "core")},
        "halo_px": tiling.halo_before_px[0],
        "redundancy": round(_redundancy(tiling, options.side), 3),
        "loss": float(found["whole"]["loss"]),
        "loss_relative_difference": loss,
        "gradient_relative_difference": apart[
            worst
        ],  # largest of all parameters, of each one's largest value
        "gradient_that_differs_most": worst,
        "ways": ways,
        "machine": _machine(options.device),
    }


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _measure(options: argparse.Namespace) -> dict[str, float]:
    device = torch.device(options.device)
    model = _model(options).to(device)
    tiling = _tiling(model, options.core)
    window_px = options.core + tiling.halo_before_px[0] + tiling.halo_after_px[0]
    step = _step(model, tiling if options.way == "tiled" else None)
    step(_batch(4 * tiling.stride_px, device), last=True)
    model.zero_grad(set_to_none=True)
    batch = _batch(window_px if options.way == "one_tile" else options.side, device)
    before_bytes = _begin(device)
    start_s = time.perf_counter()
    terms = step(batch, last=True)
    peak_bytes = _peak_bytes(device) - before_bytes  # waits for a GPU
    step_s = time.perf_counter() - start_s
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    torch.save({"loss": terms[LOSS].cpu(), **gradients}, options.found)
    return {"peak_mib": round(peak_bytes / 2**20, 1), "step_s": round(step_s, 2)}


def _model(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    shape = {"levels": options.levels, "width": options.width, "norm": "none"}
    return build_model("unet", num_classes=CLASSES, in_channels=BANDS, **shape).double()


def _tiling(model: nn.Module, core_px: int) -> Tiling:
    halo = derive_halo(trace(model, example_shape(BANDS))).aligned
    before, after = (halo.rows.before_px, halo.cols.before_px), (halo.rows.after_px, halo.cols.after_px)
    return Tiling(core_px=core_px, halo_before_px=before, halo_after_px=after, stride_px=halo.stride_px)


def _redundancy(tiling: Tiling, side: int) -> float:
    return redundancy(cover(side, side, tiling.core_px, tiling.halo), side, side)


def _step(model: nn.Module, tiling: Tiling | None) -> Step:
    plan = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=())
    terms = make_loss_terms(LOSS, BandStatistics((0.0,) * BANDS, (1.0,) * BANDS))

    def in_double(model: nn.Module, batch: Batch) -> Terms:
        return terms(lambda images: model(images.double()), batch)  # type: ignore[arg-type]

    return compose(model, in_double, replace(plan, tiles=tiling), bf16=False)


def _batch(side: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (1, side, side), generator=generator, dtype=torch.uint8)
    images = torch.randn(1, BANDS, side, side, generator=generator)
    valid = torch.ones(1, side, side, dtype=torch.bool)
    return Batch(images, valid, ClassRasters(labels), count_terms(LOSS, ClassRasters(labels))).to(device)


def _begin(device: torch.device) -> int:
    if device.type == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts over
        return _status_bytes("VmRSS")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return _status_bytes("VmHWM")
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"name": name, "num_cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions}


if __name__ == "__main__":
    main()
