"""Whether boxes of a large scene depend on the tiles, and what memory they take.

    python benchmarks/boxes_mosaic.py RUN [--side 6000] [--tiles 1024 1536 2048] [--device auto] [--out result.json]

A mosaic of the run's test pictures is searched at each size of tiles, and at the largest one of twice its area, each in
a process of its own after a small scene that loads everything. Counted are sure boxes, those with a partner of IoU 0.5
at each other size, and the high-water mark of resident memory after the small scene and after the mosaic.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from itertools import permutations
from pathlib import Path

import numpy as np
import rasterio
import shapely
from rasterio.windows import Window as Place

from outsize.data.boxes import overlaps
from outsize.data.recall import recall_images
from outsize.data.scenes import open_image
from outsize.infer.ready import load_ready
from outsize.job import load_job
from outsize.raster.reading import SceneReader, describe
from outsize.runs import RunFolder
from outsize.tasks import task_of
from outsize.tasks.detect.files import read_boxes, write_boxes
from outsize.tasks.detect.finding import find_boxes
from outsize.tasks.detect.predict import finder_of
from outsize.tasks.detect.settle import FoundBoxes

SMALL_PX = 512  # side of the scene that comes before
GPU_BYTES = 24 << 30
MOST_APART, LEAST_PARTNERS = 0.02, 0.98  # of counts; of sure boxes with a partner


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--side", type=int, default=6000)
    parser.add_argument("--tiles", type=int, nargs="+", default=[1024, 1536, 2048])
    parser.add_argument("--split", default="test")
    parser.add_argument("--min-score", type=float, default=0.5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        search(options, *map(Path, options.child))
        return
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder, side = Path(name), options.side
        shapes = {"small": (SMALL_PX,) * 2, "full": (side, side), "twice": (2 * side, side)}
        for kind, shape in shapes.items():
            draw(options, folder / f"{kind}.tif", *shape)
        told, found = {}, {}
        for kind, tile_px in [*(("full", each) for each in options.tiles), ("twice", max(options.tiles))]:
            results = folder / f"{kind}-{tile_px}.json"
            told[kind, tile_px] = child(options, folder, kind, tile_px, results)
            print(kind, tile_px, told[kind, tile_px], flush=True)
            if kind == "full":
                found[tile_px] = read_boxes(results)
    result = summary(options, told, found)
    result["seconds"] = round(time.perf_counter() - start_s, 1)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(0 if result["reached"] else 1)


def summary(
    options: argparse.Namespace, told: dict[tuple[str, int], dict], found: dict[int, FoundBoxes]
) -> dict:
    """Put what the searches told beside each other."""
    counts = [len(each) for each in found.values()]
    shares = {
        f"{one} at {other}": partners(found[one], found[other]) for one, other in permutations(found, 2)
    }
    apart = max(counts) / max(1, min(counts)) - 1
    largest = max(options.tiles)
    more = told["twice", largest]["host_bytes"] - told["full", largest]["host_bytes"]
    return {
        "side_px": options.side,
        "scene_bytes": 3 * options.side**2,
        "min_score": options.min_score,
        "tiles": {tile_px: each for (kind, tile_px), each in told.items() if kind == "full"},
        "with_partner": {name: round(share, 4) for name, share in shares.items()},
        "counts_differ_by": round(apart, 4),
        "host_bytes_by_twice_the_area": more,
        "reached": bool(apart <= MOST_APART and min(shares.values(), default=1.0) >= LEAST_PARTNERS),
    }


def child(options: argparse.Namespace, folder: Path, kind: str, tile_px: int, results: Path) -> dict:
    command = [
        sys.executable,
        __file__,
        str(options.run),
        "--device",
        options.device,
        "--tiles",
        str(tile_px),
    ]
    command += ["--min-score", str(options.min_score), "--child"]
    command += [str(folder / "small.tif"), str(folder / f"{kind}.tif"), str(results)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tiles of {tile_px} px failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def search(options: argparse.Namespace, small: Path, scene: Path, results: Path) -> None:
    """Search a small scene, so that everything is loaded, and then the one that counts."""
    run, info = RunFolder(options.run), describe(scene)
    job = load_job(run.job)
    limits = job.limits.model_copy(update={"tile_px": options.tiles[0], "gpu_memory": GPU_BYTES})
    given = {"device_name": options.device, "precision": job.train.precision}
    ready = load_ready(run.best, limits, [info], task_of(job.task).cutting, **given)
    finder, marks = finder_of(ready, job.predict.boxes), []
    for looked in (describe(small), info):
        start_s = time.perf_counter()
        ((_, found),) = find_boxes(finder, [(looked, ())])
        seconds = time.perf_counter() - start_s
        marks.append(most_resident_bytes())
    sure = found.take(found.scores >= options.min_score)
    write_boxes(results, sure, info, [each.name for each in ready.card.classes])
    told = {"seconds": round(seconds, 2), "num_sure": len(sure), "num_all": len(found)}
    told |= {
        "core_px": ready.tiling.core_px,
        "num_tiles": len(finder.tiles(info)),
        "batch": ready.settings.batch,
    }
    print(json.dumps({**told, "host_bytes_small": marks[0], "host_bytes": marks[1]}))


def most_resident_bytes() -> int:
    """Return this process's own high-water mark: what `resource` says begins with that of whoever started it."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def draw(options: argparse.Namespace, target: Path, height: int, width: int) -> None:
    """Lay pictures of a run beside and below each other."""
    run = RunFolder(options.run)
    job = load_job(run.job)
    infos = [open_image(path, job.data) for path in recall_images(run.split, options.split)]
    form = {"driver": "GTiff", "height": height, "width": width, "count": infos[0].num_bands}
    form |= {"dtype": infos[0].dtype, "tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(target, "w", **form) as file:
        file.descriptions = tuple(name or None for name in infos[0].band_names)
        row = at = 0
        while row < height:
            col, strip_px = 0, infos[at % len(infos)].height
            while col < width:
                info = infos[at % len(infos)]
                at += 1
                with SceneReader(info) as reader:
                    pixels = reader.read(info.window).pixels
                pixels = np.pad(pixels, ((0, 0), (0, max(0, strip_px - pixels.shape[1])), (0, 0)))
                pixels = pixels[:, : min(strip_px, height - row), : width - col]
                file.write(pixels, window=Place(col, row, pixels.shape[2], pixels.shape[1]))
                col += info.width
            row += strip_px


def partners(some: FoundBoxes, others: FoundBoxes) -> float:
    """Return the share of boxes with a partner of their class."""
    if not len(some) or not len(others):
        return float(len(some) == len(others))
    here, there = shapely.box(*some.sides.T), shapely.box(*others.sides.T)
    one, other = shapely.STRtree(there).query(here, predicate="intersects")
    shared = overlaps(some.sides[one], others.sides[other])
    areas = [(each.sides[:, 2:] - each.sides[:, :2]).prod(1) for each in (some, others)]
    ious = shared / (areas[0][one] + areas[1][other] - shared)
    met = (ious >= 0.5) & (some.class_ids[one] == others.class_ids[other])
    return len(np.unique(one[met])) / len(some)


if __name__ == "__main__":
    main()
