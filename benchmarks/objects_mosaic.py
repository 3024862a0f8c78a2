"""Whether objects of a large scene depend on the tiles, and what memory they take.

    python benchmarks/objects_mosaic.py RUN [--side 6000] [--tiles 512 1024 2048] [--out result.json]

A mosaic of the run's test pictures is searched at each size of tiles, each in a process of its own, and a scene of the
same size with pictures in one corner only. Counted are objects, those with a partner of IoU 0.5 at each other size, and
the high-water mark of resident memory after a small scene was searched, and after the mosaic.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio
import shapely
from rasterio.windows import Window as Place

from outsize.data.objects import Object, iou
from outsize.data.recall import recall_images
from outsize.data.scenes import open_image
from outsize.infer.coco_results import read_results, write_results
from outsize.infer.object_scene import finder_of
from outsize.infer.objects import find_objects
from outsize.infer.ready import load_ready
from outsize.job import load_job
from outsize.raster.read import SceneReader, describe
from outsize.runs import RunFolder

CORNER_PX = 512  # side of what is filled of a scene that is nearly empty


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--side", type=int, default=6000)
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--min-score", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        search(options, *options.child)
        return
    result = {"side_px": options.side, "min_score": options.min_score, "tiles": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, full, sparse = (folder / f"{each}.tif" for each in ("small", "full", "sparse"))
        draw(options.run, small, CORNER_PX, CORNER_PX)
        draw(options.run, full, options.side, options.side)
        draw(options.run, sparse, options.side, CORNER_PX)
        found: dict[int, list[Object]] = {}
        for tile_px in options.tiles:
            path = folder / f"{tile_px}.json"
            told = child(options, small, full, tile_px, path)
            found[tile_px] = [each for each in read_results(path) if each.score >= options.min_score]
            result["tiles"][tile_px] = {**told, "num_objects": len(found[tile_px])}
            print(tile_px, result["tiles"][tile_px], flush=True)
        result["sparse"] = child(options, small, sparse, options.tiles[0], folder / "sparse.json")
    result["with_partner"] = {
        f"{one} at {other}": round(partners(found[one], found[other]), 4)
        for one in found
        for other in found
        if one != other
    }
    counts = [len(each) for each in found.values()]
    result["counts_differ_by"] = round(max(counts) / max(1, min(counts)) - 1, 4)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def child(options: argparse.Namespace, small: Path, scene: Path, tile_px: int, results: Path) -> dict:
    command = [
        sys.executable,
        __file__,
        str(options.run),
        "--device",
        options.device,
        "--tiles",
        str(tile_px),
    ]
    command += ["--min-score", str(options.min_score), "--child", str(small), str(scene), str(results)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def search(options: argparse.Namespace, small: str, scene: str, results: str) -> None:
    """Search a small scene, so that everything is loaded, and then the one that counts."""
    run = RunFolder(options.run)
    job = load_job(run.job)
    info = describe(Path(scene))
    limits = job.limits.model_copy(update={"tile_px": options.tiles[0]})
    precision = job.train.precision
    ready = load_ready(run.best, limits, [info], device_name=options.device, precision=precision)
    finder = finder_of(ready, options.min_score)
    marks = []
    for path in (Path(small), Path(scene)):
        info = describe(path)
        start_s = time.perf_counter()
        with SceneReader(info) as reader:
            objects = find_objects(finder, reader, finder.tiles(info))
        seconds = time.perf_counter() - start_s
        marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    write_results(Path(results), objects, info, [each.name for each in ready.card.classes])
    mask_bytes = sum(each.mask.nbytes for each in objects)
    told = {"seconds": round(seconds, 2), "num_all": len(objects), "mask_bytes": mask_bytes}
    told |= {"host_bytes_small": marks[0], "host_bytes": marks[1], "core_px": ready.tiling.core_px}
    print(json.dumps({**told, "batch": ready.settings.batch}))


def draw(run_path: Path, target: Path, side_px: int, filled_px: int) -> None:
    """Lay test pictures of a run beside and below each other, in a corner of a black scene."""
    filled_px = min(filled_px, side_px)
    run = RunFolder(run_path)
    job = load_job(run.job)
    infos = [open_image(path, job.data) for path in recall_images(run.split, "test")]
    form = {"driver": "GTiff", "height": side_px, "width": side_px, "count": infos[0].num_bands}
    form |= {"dtype": infos[0].dtype, "tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(target, "w", **form) as file:
        file.descriptions = tuple(name or None for name in infos[0].band_names)
        row = at = 0
        while row < filled_px:
            col, height = 0, infos[at % len(infos)].height
            while col < filled_px:
                info = infos[at % len(infos)]
                at += 1
                with SceneReader(info) as reader:
                    pixels = reader.read(info.window).pixels
                pixels = np.pad(pixels, ((0, 0), (0, max(0, height - pixels.shape[1])), (0, 0)))[:, :height]
                pixels = pixels[:, : filled_px - row, : filled_px - col]
                file.write(pixels, window=Place(col, row, pixels.shape[2], pixels.shape[1]))
                col += info.width
            row += height


def partners(some: list[Object], others: list[Object]) -> float:
    """Return the share of objects with a partner."""
    if not some or not others:
        return 0.0
    here, there = (shapely.box(*np.array([each.box for each in objects]).T) for objects in (some, others))
    one, other = shapely.STRtree(there).query(here, predicate="intersects")
    met = {a for a, b in zip(one.tolist(), other.tolist(), strict=True) if iou(some[a], others[b]) >= 0.5}
    return len(met) / len(some)


if __name__ == "__main__":
    main()
