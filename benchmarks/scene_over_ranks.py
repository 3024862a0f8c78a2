"""A scene predicted by ranks beside as many independent processes, each with a part of it; interleaved rounds.

    OMP_NUM_THREADS=1 python benchmarks/scene_over_ranks.py --ranks 2 --rounds 10

A round is one scene for all ranks together, and a scene of as many times fewer rows for each process alone, begun at
the same moment: the same pixels in all. Each is `outsize predict` from the plan to the closed map, without polygons;
its ratio is the time of the slowest process alone over the time together. Seconds of CPU are those of the busiest rank:
they hold on a machine that does other things, too, but not how long it waited for others.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outsize.card import Card, save_checkpoint
from outsize.commands.predict import predict
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic.scenes import CLASSES, draw_scene
from outsize.job import ClassSpec
from outsize.models import build_model
from outsize.progress import Reporter
from outsize.ranks import ALONE, World, joined
from outsize.ranks.launch import launch
from outsize.runs import RunFolder

_BANDS = ("blue", "green", "red", "nir")
_JOB = """task = "segment"
[data]
train = ["scene.tif"]
bands = ["blue", "green", "red", "nir"]
{classes}
[model]
name = "unet"
[predict]
polygons = "none"
"""


def _write_run(folder: Path, asked: argparse.Namespace) -> None:
    """Write a run of a network that has learnt nothing."""
    run = RunFolder(folder)
    run.best.parent.mkdir(parents=True)
    tables = "".join(f'[[data.classes]]\nname = "{each.name}"\nvalue = {each.value}\n' for each in CLASSES)
    run.job.write_text(_JOB.format(classes=tables))
    torch.manual_seed(0)
    options = {"levels": 4, "width": asked.width}
    model = build_model("unet", num_classes=len(CLASSES), in_channels=len(_BANDS), **options)
    card = Card(
        task="segment",
        model="unet",
        options=options,
        classes=tuple(ClassSpec(name=each.name, value=each.value) for each in CLASSES),
        bands=_BANDS,
        dtype="uint16",
        statistics=BandStatistics((1000.0,) * len(_BANDS), (500.0,) * len(_BANDS)),
    )
    save_checkpoint(run.best, model, card)


def _timed(world: World, work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that the slowest rank took, and those of CPU of the busiest one."""
    world.barrier()
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = world.gather((took_s, cpu_s))
    return max(each for each, _ in found), max(each for _, each in found)


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with joined() as world:
        folder = Path(asked.folder)

        def run(name: str, among: World) -> None:
            out = folder / f"{name}-of-{world.rank if among.is_alone else 'all'}"
            overrides = (f"limits.tile_px={asked.tile}",)
            own = folder / f"run-{world.rank}"
            quiet = Reporter("quiet")
            image = [folder / f"{name}.tif"]
            predict(own, image, out=out, overrides=overrides, device_name="cpu", reporter=quiet, world=among)

        ratios, of_cpu = [], []
        for number in range(asked.rounds + 1):
            one_s, one_cpu_s = _timed(world, lambda: run("part", ALONE))
            all_s, all_cpu_s = _timed(world, lambda: run("whole", world))
            if world.is_owner:
                for out in folder.glob("*-of-*"):
                    shutil.rmtree(out)
            world.barrier()
            if number == 0:  # warms up
                continue
            ratios.append(one_s / all_s)
            of_cpu.append(one_cpu_s / all_cpu_s)
            if world.is_owner:
                print(
                    f"round {number}: alone {one_s:.2f} s (CPU {one_cpu_s:.2f}), together {all_s:.2f} s"
                    f" (CPU {all_cpu_s:.2f}), ratio {ratios[-1]:.3f} (CPU {of_cpu[-1]:.3f})",
                    flush=True,
                )
        if world.is_owner:
            for name, row in (("ratio", ratios), ("ratio of CPU", of_cpu)):
                print(f"median {name} {statistics.median(row):.3f}, {min(row):.3f} to {max(row):.3f}")
            sides = f"{asked.side} x {asked.side} px in tiles of {asked.tile} px"
            print(f"{world.size} ranks, torch {torch.__version__}, {sides}, U-Net of width {asked.width}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("ranks", 2), ("rounds", 10), ("side", 1536), ("tile", 256), ("width", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", help="of a rank: where the scenes and runs are")
    asked = parser.parse_args()
    if asked.folder is not None:
        _rank(asked)
        return
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(asked.ranks):
            _write_run(Path(folder) / f"run-{rank}", asked)
        for name, rows in (("whole", asked.side), ("part", asked.side // asked.ranks)):
            draw_scene(Path(folder), name, rows, asked.side, 1, vectors=False)
        code = launch([*sys.argv, "--folder", folder], asked.ranks)
    sys.exit(code)


if __name__ == "__main__":
    main()
