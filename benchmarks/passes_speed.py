"""Exact passes against one approximate pass, and against the whole: time and difference, interleaved in one run.

python benchmarks/passes_speed.py 512 640 192
"""

from __future__ import annotations

import sys
import time

import torch

from outsize.infer.passes import Keep, PassRun, Program
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.tiles.grid import cover
from outsize.tiles.halo import derive_halo
from outsize.tiles.passes import Walk

NETWORKS = {
    "Unet/efficientnet-b0": {},
    "Unet/resnet18": {"decoder_attention_type": "scse"},
    "DeepLabV3Plus/resnet18": {},
}


@torch.inference_mode()
def main(height: int, width: int, core_px: int, repeats: int = 2) -> None:
    """Print a row for each network: least seconds of both ways, their ratio, largest differences from the whole."""
    for name, options in NETWORKS.items():
        torch.manual_seed(0)
        model = build_model(f"smp:{name}", num_classes=4, in_channels=3, **options).eval()
        inputs = torch.randn(1, 3, height, width).contiguous(memory_format=torch.channels_last)
        whole = model(inputs)
        halo = derive_halo(trace(model, example_shape(3)))
        program = Program(model, 3, (height, width))
        cores_px = [core_px] * program.laid.num_passes
        cores = [work.core for work in Walk(program.laid, program.laid.num_passes - 1, core_px).works()]
        tiles = cover(height, width, core_px, halo)
        times: dict[str, list[float]] = {"passes": [], "tiles": []}
        apart = {"passes": 0.0, "tiles": 0.0}
        for _ in range(repeats):
            start_s = time.perf_counter()
            run = PassRun(
                program,
                lambda window, inputs=inputs: inputs[(..., *window.slices)],
                Keep(None),
                inputs.device,
                cores_px=cores_px,
            )
            for core, logits in run.last(cores):
                off = float((logits - whole[(..., *core.slices)]).abs().max() / whole.abs().max())
                apart["passes"] = max(apart["passes"], off)
            times["passes"].append(time.perf_counter() - start_s)
            start_s = time.perf_counter()
            for tile in tiles:
                logits = model(inputs[(..., *tile.read.slices)])[(..., *tile.core.within(tile.read).slices)]
                off = float((logits - whole[(..., *tile.core.slices)]).abs().max() / whole.abs().max())
                apart["tiles"] = max(apart["tiles"], off)
            times["tiles"].append(time.perf_counter() - start_s)
        passes_s, tiles_s = min(times["passes"]), min(times["tiles"])
        print(
            f"| {name} | {len(cores)} | {program.laid.num_passes} | {passes_s:.2f} | {tiles_s:.2f} | "
            f"{passes_s / tiles_s:.2f} | {apart['passes']:.1e} | {apart['tiles']:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
