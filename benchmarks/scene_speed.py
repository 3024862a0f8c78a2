"""A scene to a map: ours from file to file against the bare model, and against MONAI's sliding window.

    python benchmarks/scene_speed.py [--side 10000] [--levels 5] [--width 32] [--out result.json]

Measures, each after a warm-up, the median of several runs:
  bare      the model alone on the very windows of our tiling, already in device memory as network input
  ours      from opening the file to class ids in a closed tiled GeoTIFF
  cog       Cloud-Optimized GeoTIFF with overviews from a class map of that size
  polygons  GeoPackage from the same
  monai     monai.inferers.sliding_window_inference (roi 704, overlap 0.25) on the scene already in device memory,
            where MONAI is installed
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from outsize.card import Card
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic.scenes import CLASSES, draw_scene
from outsize.infer.prepare import make_prepare
from outsize.infer.ready import Ready, make_ready
from outsize.infer.stream import NODATA
from outsize.job import ClassSpec, LimitsSection
from outsize.models import build_model
from outsize.progress import Reporter
from outsize.raster.reading import SceneInfo, SceneReader, describe
from outsize.raster.vectors import write_polygons
from outsize.raster.writing import Layer, TileStore, make_cog
from outsize.tasks.segment.maps.decoding import Wanted
from outsize.tasks.segment.maps.fill import predict_tiles
from outsize.tiles.grid import cover, redundancy
from outsize.tiles.window import Window

ROI_PX, OVERLAP = 704, 0.25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=10_000 if torch.cuda.is_available() else 2048)
    parser.add_argument("--levels", type=int, default=5)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--memory", default="16GiB", help="limit for planning, on the GPU or the host")
    parser.add_argument("--tile", type=int, default=None, help="core in px instead of the planned one")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--compress", default=None, help="of the scene: none or deflate")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder), options)
    text = json.dumps(result, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    side = options.side
    start_s = time.perf_counter()
    cores = os.cpu_count() or 1
    path = draw_scene(
        folder, "scene", side, side, 1, vectors=False, compress=options.compress, num_workers=cores
    )
    drawn_s = time.perf_counter() - start_s
    info = describe(path)
    ready = _ready(info, options)
    result: dict[str, Any] = {"drawn_s": round(drawn_s, 1), **_facts(ready, info, options)}
    work = folder / "work"
    num_mpx = info.num_px / 1e6

    def ours() -> None:
        _ours(ready, describe(path), work)

    bare = _bare(ready, info)
    result["bare"] = _timed(bare, options.runs, num_mpx)
    _forget(ready)
    result["ours"] = _timed(ours, options.runs, num_mpx)
    result["ours"]["peak_bytes"] = _peak_bytes(ready)
    result["ours_over_bare"] = round(result["ours"]["median_s"] / result["bare"]["median_s"], 3)
    colours = {spec.value: spec.colour for spec in CLASSES}
    names = {spec.value: spec.name for spec in CLASSES}
    # the map of a random net is speckle: the scene's own labels stand in for that of a trained one
    classes = path.with_name("scene_labels.tif")
    result["cog"] = _timed(
        lambda: make_cog(classes, folder / "map.tif", resampling="mode", colours=colours, nodata=NODATA),
        1,
        num_mpx,
    )
    result["polygons"] = _timed(
        lambda: write_polygons(classes, None, folder / "map.gpkg", class_names=names), 1, num_mpx
    )
    monai = _monai(ready, info)
    if monai is not None:
        _forget(ready)
        result["monai"] = _timed(monai, max(1, options.runs // 2), num_mpx)
        result["monai"]["peak_bytes"] = _peak_bytes(ready)
        result["monai_over_ours"] = round(result["monai"]["median_s"] / result["ours"]["median_s"], 3)
    return result


def _ready(info: SceneInfo, options: argparse.Namespace) -> Ready:
    torch.manual_seed(0)
    model = build_model(
        "unet",
        num_classes=len(CLASSES),
        in_channels=info.num_bands,
        levels=options.levels,
        width=options.width,
    )
    card = Card(
        task="segment",
        model="unet",
        options={"levels": options.levels, "width": options.width},
        classes=tuple(ClassSpec(name=c.name, value=c.value, colour=c.colour) for c in CLASSES),
        bands=info.band_names,
        dtype=info.dtype,
        statistics=BandStatistics((1000.0,) * info.num_bands, (500.0,) * info.num_bands),
    )
    limits = LimitsSection(gpu_memory=options.memory, host_memory=options.memory, tile_px=options.tile)
    return make_ready(model, card, limits, [info], device_name="auto", precision="auto")


def _ours(ready: Ready, info: SceneInfo, work: Path) -> None:
    tiles = cover(info.height, info.width, ready.tiling.core_px, ready.tiling.halo)
    wanted = Wanted(tuple(each.value for each in ready.card.classes))
    layers = (Layer("classes", "uint8", 1, NODATA),)
    # another key each time, so that nothing is taken up from the run before
    with TileStore.open(work, info, layers, len(tiles), key=str(time.perf_counter_ns())) as store:
        predict_tiles(
            ready.model,
            ready.card,
            tiles,
            store,
            wanted=wanted,
            settings=ready.settings,
            reporter=Reporter("quiet"),
        )


def _bare(ready: Ready, info: SceneInfo) -> Callable[[], None]:
    tiles = cover(info.height, info.width, ready.tiling.core_px, ready.tiling.halo)
    inputs = _inputs(ready, info, [tile.read for tile in tiles])
    batch = ready.settings.batch

    @torch.inference_mode()
    def run() -> None:
        with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=ready.settings.bf16):
            for start in range(0, len(inputs), batch):
                ready.model(inputs[start] if batch == 1 else torch.cat(inputs[start : start + batch]))

    return run


def _inputs(ready: Ready, info: SceneInfo, windows: list[Window]) -> list[torch.Tensor]:
    """Read windows and normalise them, on the device."""
    prepare = make_prepare(ready.card.bands, info, ready.card.statistics)
    inputs = []
    with SceneReader(info) as reader:
        for window in windows:
            raster = reader.read(window)
            device = ready.settings.device
            images = torch.from_numpy(raster.pixels)[None].to(device)
            valid = torch.from_numpy(raster.valid)[None].to(device)
            inputs.append(prepare(images, valid).contiguous(memory_format=torch.channels_last))
    return inputs


def _monai(ready: Ready, info: SceneInfo) -> Callable[[], None] | None:
    try:
        from monai.inferers import sliding_window_inference
    except ImportError:
        return None
    (scene,) = _inputs(ready, info, [info.window])

    @torch.inference_mode()
    def run() -> None:
        with torch.autocast(scene.device.type, torch.bfloat16, enabled=ready.settings.bf16):
            logits = sliding_window_inference(scene, (ROI_PX, ROI_PX), 4, ready.model, overlap=OVERLAP)
        logits.argmax(1).to(torch.uint8).cpu()  # type: ignore[union-attr]

    return run


def _timed(run: Callable[[], None], num_runs: int, num_mpx: float) -> dict[str, float]:
    run()
    times_s = []
    for _ in range(num_runs):
        _synchronise()
        start_s = time.perf_counter()
        run()
        _synchronise()
        times_s.append(time.perf_counter() - start_s)
    median_s = statistics.median(times_s)
    return {
        "median_s": round(median_s, 4),
        "least_s": round(min(times_s), 4),
        "most_s": round(max(times_s), 4),
        "mpx_per_s": round(num_mpx / median_s, 2),
    }


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget(ready: Ready) -> None:
    if ready.settings.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes(ready: Ready) -> int:
    if ready.settings.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _facts(ready: Ready, info: SceneInfo, options: argparse.Namespace) -> dict[str, Any]:
    tiles = cover(info.height, info.width, ready.tiling.core_px, ready.tiling.halo)
    device = ready.settings.device
    return {
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "scene": f"{info.height} x {info.width} x {info.num_bands} {info.dtype}, compress={options.compress}",
        "model": f"U-Net, {options.levels} levels, width {options.width}, {len(CLASSES)} classes",
        "precision": "bf16" if ready.settings.bf16 else "fp32",
        "core_px": ready.tiling.core_px,
        "window_px": [tiles[0].read.height, tiles[0].read.width],
        "num_tiles": len(tiles),
        "batch": ready.settings.batch,
        "redundancy": round(redundancy(tiles, info.height, info.width), 3),
    }


if __name__ == "__main__":
    main()
