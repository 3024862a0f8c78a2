"""What it takes to believe in tiles of a model that is not known: its halo, other sizes on shapes, a trial in float64.

    python benchmarks/trying_speed.py [resnet50]        # a U-Net of segmentation-models-pytorch with this encoder

Seconds of the clock and of the processor, on a picture of 640 x 640 px that is predicted in tiles.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import segmentation_models_pytorch as smp
import torch

import outsize
from outsize.infer import ready
from outsize.measure import facts

SIDE_PX, TILE_PX = 640, 288


def main() -> None:
    encoder = sys.argv[1] if len(sys.argv) > 1 else "resnet50"
    spent = {
        name: timed(room, name)
        for room, name in ((facts, "derive"), (ready, "differing_at"), (ready, "try_tiling"))
    }
    model = smp.Unet(encoder, encoder_weights=None, classes=6)
    with tempfile.TemporaryDirectory() as folder:
        scene, target = Path(folder) / "scene.tif", Path(folder) / "map.tif"
        pixels = np.random.default_rng(0).normal(size=(3, SIDE_PX, SIDE_PX)).astype("float32")
        with rasterio.open(
            scene, "w", driver="GTiff", count=3, height=SIDE_PX, width=SIDE_PX, dtype="float32"
        ) as file:
            file.write(pixels)
        outsize.predict(model, str(scene), str(target), limits={"tile_px": TILE_PX}, device="cpu")
    for name, (clock_s, processor_s) in spent.items():
        print(f"{name}: {clock_s:.2f} s, {processor_s:.2f} s of the processor")
    clock_s, processor_s = (sum(each[axis] for each in spent.values()) for axis in (0, 1))
    print(
        f"together: {clock_s:.2f} s, {processor_s:.2f} s of the processor, {torch.get_num_threads()} threads"
    )


def timed(room: Any, name: str) -> list[float]:
    """Let a function of a room count what it takes."""
    function: Callable[..., Any] = getattr(room, name)
    spent = [0.0, 0.0]

    def run(*args: Any, **how: Any) -> Any:
        began_s = time.perf_counter(), time.process_time()
        try:
            return function(*args, **how)
        finally:
            spent[0] += time.perf_counter() - began_s[0]
            spent[1] += time.process_time() - began_s[1]

    setattr(room, name, run)
    return spent


if __name__ == "__main__":
    main()
