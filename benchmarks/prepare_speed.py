"""How much faster two processes prepare scenes than one, and how a Dask cluster of two workers compares with them.

python benchmarks/prepare_speed.py [--scenes 24] [--side 2048] [--rounds 3]

Each round makes the same scenes by one process, by two, and by a local Dask cluster of two workers of one thread;
printed are medians and their ratios, workers' start included. On an idle machine of two cores: some 6 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from outsize import __version__
from outsize.data.synthetic import draw_scene
from outsize.job import PrepareSection
from outsize.prepare.folder import prepare_folder
from outsize.prepare.piece import Piece
from outsize.prepare.scenes import RawScene, SceneSettings, scene_piece
from outsize.progress import Reporter


def main() -> None:
    """Draw scenes, prepare them in turn in each way, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("scenes", 24), ("side", 2048), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), asked.scenes, asked.side, asked.rounds)


def compare(folder: Path, num_scenes: int, side_px: int, num_rounds: int) -> dict[str, float]:
    """Return the median seconds of each way."""
    from distributed import LocalCluster

    pieces = [_drawn(folder / "raw", number, side_px) for number in range(num_scenes)]
    taken: dict[str, list[float]] = {"one": [], "two": [], "dask": []}
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        ways = {
            "one": PrepareSection(workers=1),
            "two": PrepareSection(workers=2),
            "dask": PrepareSection(scheduler=cluster.scheduler_address),
        }
        for number in range(num_rounds):
            for way, section in ways.items():
                begun_s = time.perf_counter()
                to = folder / f"{way}-{number}"
                prepare_folder(pieces, to, section, version=__version__, reporter=Reporter("quiet"))
                taken[way].append(time.perf_counter() - begun_s)
    medians = {way: statistics.median(each) for way, each in taken.items()}
    print({way: [round(each, 2) for each in times] for way, times in taken.items()})
    print(f"a scene by one process: {medians['one'] / num_scenes:.2f} s")
    print(f"two processes: {medians['one'] / medians['two']:.2f} times as fast as one (wanted: 1.6)")
    print(
        f"Dask: {medians['dask'] / medians['two']:.2f} times the time of two processes (wanted: at most 1.15)"
    )
    return medians


def _drawn(folder: Path, number: int, side_px: int) -> Piece:
    image = draw_scene(folder, f"s{number:03}", side_px, side_px, seed=number, vectors=False)
    raw = RawScene(image.stem, image, labels=image.with_name(f"{image.stem}_labels.tif"))
    return scene_piece(raw, SceneSettings(dict.fromkeys(range(6), (0, 0, 0))), __version__)


if __name__ == "__main__":
    main()
