"""One picture on several ranks beside the whole of it in one process: time and memory of a step; interleaved.

    python benchmarks/spread_speed.py --rounds 10 --px 768                # borders exchanged, with batch norm
    python benchmarks/spread_speed.py --rounds 10 --px 768 --recompute    # halos recomputed, without

A round is a step of the whole by rank 0 alone, then one of all ranks together. The ratio is the time of the first over
that of the second and over the ranks; memory is what a step adds to the process at its fullest (Linux).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import Spatial, unplanned
from outsize.ranks import World, joined
from outsize.ranks.launch import launch
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out
from outsize.strategies.step import LossParts

_CLASSES, _LEVELS = 6, 4
_HALO_PX = 48  # of a U-Net of 4 levels, in whole strides
_STATUS = Path("/proc/self/status")


def _sums(_: nn.Module, answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    return {"entropy": nn.functional.cross_entropy(answer, labels, reduction="sum", ignore_index=255)}


def _step(world: World, asked: argparse.Namespace, *, together: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    norm = "none" if asked.recompute else "batch"
    model = build_model(
        "unet", num_classes=_CLASSES, in_channels=4, levels=_LEVELS, width=asked.width, norm=norm
    )
    images = torch.randn(1, 4, asked.px, asked.px)
    labels = torch.randint(0, _CLASSES, (1, asked.px, asked.px), dtype=torch.uint8)
    batch = Batch(images, labels < _CLASSES, ClassRasters(labels), {"entropy": float(labels.numel())})
    plan, share = unplanned(), None
    if together:
        around = (_HALO_PX, _HALO_PX) if asked.recompute else None
        stride_px = 2 ** (_LEVELS - 1)
        spatial = Spatial((world.size, 1), (asked.px, asked.px), stride_px, around, around)
        tile = spatial.tiles()[world.rank]
        batch = batch.crop(tile.read, tile.core).each(torch.clone)
        plan, share = unplanned(spatial=spatial), share_out(world, 1, 1, world.size)
        look_across(model, share)
    step = compose(model, LossParts(lambda _, each: (each.images,), _sums), plan, bf16=False, share=share)

    def run() -> None:
        step(batch, last=True)
        model.zero_grad(set_to_none=True)

    return run


def _measured(run: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of a step, and the MiB that it adds at its fullest."""
    Path("/proc/self/clear_refs").write_text("5")  # begins the mark of the fullest again
    before, began_s = _kib("VmRSS"), time.perf_counter()
    run()
    return time.perf_counter() - began_s, (_kib("VmHWM") - before) / 1024


def _kib(name: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(name))


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with joined() as world:
        alone, together = (_step(world, asked, together=each) for each in (False, True))
        ratios, memory = [], []
        for number in range(asked.rounds + 1):
            whole = world.owners(lambda: _measured(alone))
            world.barrier()
            parts = world.gather(_measured(together))
            if number:  # the first warms up
                ratios.append(whole[0] / max(each[0] for each in parts) / world.size)
                memory.append(max(each[1] for each in parts) / whole[1])
        if world.is_owner:
            for name, found in (("time", ratios), ("memory", memory)):
                print(f"{name}: median {statistics.median(found):.3f}, {min(found):.3f} to {max(found):.3f}")
            how = "halos recomputed" if asked.recompute else "borders exchanged, batch norm"
            print(f"{world.size} ranks, {asked.px} px, width {asked.width}, {how}, torch {torch.__version__}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("ranks", 2), ("rounds", 10), ("px", 768), ("width", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
    else:
        sys.exit(launch([*sys.argv, "--is-rank"], asked.ranks))


if __name__ == "__main__":
    main()
