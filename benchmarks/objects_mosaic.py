"""Whether objects of a large scene depend on the tiles, and what memory they take.

    python benchmarks/objects_mosaic.py RUN [NUCLEI] [--side 6000] [--tiles 512 1024 2048] [--out result.json]

A mosaic of the run's test pictures, which lie in NUCLEI/images if they no longer lie where the run found them, is
searched at each size of tiles, each in a process of its own; and so is a scene of the same size with pictures in one
corner only, and at the largest tiles one of four times its area. Several run at a time, each in a part of the
device's memory. Counted are objects, those with a partner of IoU 0.5 at each other size, and the high-water mark of
resident memory after a small scene was searched, and after the mosaic: what the nearly empty scene adds are buffers
and the scene, what the full one adds beyond is due to objects; and four times the scene adds what a scene adds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import rasterio
import shapely
from rasterio.windows import Window as Place

from outsize.data.formats import read_results, write_results
from outsize.data.object import Object, iou
from outsize.data.recall import recall_images
from outsize.data.scenes import open_image
from outsize.infer.ready import load_ready
from outsize.job import load_job
from outsize.raster.reading import SceneReader, describe
from outsize.runs import RunFolder
from outsize.tasks import task_of
from outsize.tasks.instances.finding.objects import find_objects
from outsize.tasks.instances.scene import finder_of

CORNER_PX = 512  # side of what is filled of a scene that is nearly empty
GPU_BYTES = 24 << 30  # for each process


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("nuclei", type=Path, nargs="?", default=None)
    parser.add_argument("--side", type=int, default=6000)
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--min-score", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        search(options, *options.child)
        return
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scenes = {each: folder / f"{each}.tif" for each in ("small", "full", "sparse", "vast")}
        for each, sides in (("small", (CORNER_PX,) * 2), ("full", (options.side,) * 2)):
            draw(options, scenes[each], *sides)
        draw(options, scenes["sparse"], options.side, CORNER_PX)
        draw(options, scenes["vast"], 2 * options.side, CORNER_PX)
        print(f"scenes in {time.perf_counter() - start_s:.1f} s", flush=True)
        works = [(kind, tile_px) for tile_px in options.tiles for kind in ("full", "sparse")]
        works.append(("vast", max(options.tiles)))

        def work(each: tuple[str, int]) -> dict:
            kind, tile_px = each
            path = folder / f"{kind}-{tile_px}.json"
            told = child(options, scenes["small"], scenes[kind], tile_px, path)
            print(kind, tile_px, told, flush=True)
            return told

        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3)) as pool:
            told = dict(zip(works, pool.map(work, works), strict=True))
        found = {tile_px: list(read_results(folder / f"full-{tile_px}.json")) for tile_px in options.tiles}
    result = summary(options, told, found)
    result["seconds"] = round(time.perf_counter() - start_s, 1)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def summary(
    options: argparse.Namespace, told: dict[tuple[str, int], dict], found: dict[int, list[Object]]
) -> dict:
    """Put what the searches found beside each other."""
    tiles = {}
    for tile_px in options.tiles:
        full, sparse = told["full", tile_px], told["sparse", tile_px]
        by_scene = sparse["host_bytes"] - sparse["host_bytes_small"]
        more = full["host_bytes"] - full["host_bytes_small"] - by_scene
        num_more = full["num_all"] - sparse["num_all"]
        tiles[tile_px] = {
            **full,
            "sparse_num_all": sparse["num_all"],
            "host_bytes_by_scene": by_scene,
            "host_bytes_by_objects": more,
            "host_bytes_per_object": round(more / num_more) if num_more > 0 else None,
        }
    counts = [len(each) for each in found.values()]
    vast, sparse = (told[kind, max(options.tiles)]["host_bytes"] for kind in ("vast", "sparse"))
    return {
        "host_bytes_by_scene_of_four_times_the_area": vast - sparse,
        "side_px": options.side,
        "scene_bytes": 3 * options.side**2,
        "min_score": options.min_score,
        "tiles": tiles,
        "with_partner": {
            f"{one} at {other}": round(partners(found[one], found[other]), 4)
            for one in found
            for other in found
            if one != other
        },
        "counts_differ_by": round(max(counts) / max(1, min(counts)) - 1, 4),
    }


def child(options: argparse.Namespace, small: Path, scene: Path, tile_px: int, results: Path) -> dict:
    command = [sys.executable, __file__, str(options.run), "--device", options.device]
    command += ["--tiles", str(tile_px), "--min-score", str(options.min_score)]
    command += ["--child", str(small), str(scene), str(results)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tiles of {tile_px} px failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def search(options: argparse.Namespace, small: str, scene: str, results: str) -> None:
    """Search a small scene, so that everything is loaded, and then the one that counts."""
    run = RunFolder(options.run)
    job = load_job(run.job)
    info = describe(Path(scene))
    update = {"tile_px": options.tiles[0], "gpu_memory": GPU_BYTES}
    limits = job.limits.model_copy(update=update)
    precision = job.train.precision
    ready = load_ready(
        run.best, limits, [info], task_of(job.task).cutting, device_name=options.device, precision=precision
    )
    finder = finder_of(ready, options.min_score)
    marks = []
    for path in (Path(small), Path(scene)):
        info = describe(path)
        start_s = time.perf_counter()
        with SceneReader(info) as reader:
            objects = find_objects(finder, reader, finder.tiles(info))
        seconds = time.perf_counter() - start_s
        marks.append(_most_resident_bytes())
    sure = [each for each in objects if each.score >= options.min_score]
    write_results(Path(results), sure, info, [each.name for each in ready.card.classes])
    told = {"seconds": round(seconds, 2), "num_all": len(objects), "num_objects": len(sure)}
    told |= {"mask_bytes": sum(each.mask.nbytes for each in objects), "core_px": ready.tiling.core_px}
    told |= {"host_bytes_small": marks[0], "host_bytes": marks[1], "batch": ready.settings.batch}
    print(json.dumps(told))


def _most_resident_bytes() -> int:
    """Return this process's own high-water mark: what `resource` says begins with that of whoever started it."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def draw(options: argparse.Namespace, target: Path, side_px: int, filled_px: int) -> None:
    """Lay pictures of a run beside and below each other, in a corner of a black scene."""
    filled_px = min(filled_px, side_px)
    run = RunFolder(options.run)
    job = load_job(run.job)
    paths = recall_images(run.split, options.split)
    if options.nuclei is not None:
        paths = [options.nuclei / "images" / path.name for path in paths]
    infos = [open_image(path, job.data) for path in paths]
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
