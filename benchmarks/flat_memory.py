"""Peak memory of predicting a small and a large scene, each in a process of its own, on the CPU.

    python benchmarks/flat_memory.py [--sides 5000 20000] [--out result.json]

Reads the high-water mark of resident memory (VmHWM) after the model was loaded and a tiny scene predicted, and again
after the scene: from opening the file to the finished Cloud-Optimized GeoTIFF.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sides", type=int, nargs="+", default=[5000, 20_000])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--child", type=Path, nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(_measure(*options.child)))
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        from outsize.data.synthetic.scenes import draw_scene

        tiny = draw_scene(Path(folder), "tiny", 300, 300, 1, vectors=False)
        for side in options.sides:
            scene = draw_scene(Path(folder), "scene", side, side, 1, vectors=False, num_workers=2)
            command = [sys.executable, __file__, "--child", str(tiny), str(scene)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append({"side_px": side, **json.loads(done.stdout.splitlines()[-1])})
            print(results[-1], flush=True)
    above = [result["above_mib"] for result in results]
    summary = {"results": results, "difference_mib": round(above[-1] - above[0], 1)}
    summary["difference_share"] = round(above[-1] / above[0] - 1, 4)
    print(json.dumps(summary, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")


def _measure(tiny: Path, scene: Path) -> dict[str, float]:
    import torch

    import outsize

    torch.manual_seed(0)
    model = outsize.build_model("unet", num_classes=6, in_channels=4, levels=3, width=4).eval()
    limits = {"host_memory": "1GiB", "tile_px": 1024}
    outsize.predict(model, tiny, tiny.with_name("tiny_map.tif"), limits=limits, device="cpu")
    before_mib = _peak_mib()
    start_s = time.perf_counter()
    outsize.predict(model, scene, scene.with_name("map.tif"), limits=limits, device="cpu")
    seconds = time.perf_counter() - start_s
    after_mib = _peak_mib()
    return {
        "loaded_mib": round(before_mib, 1),
        "peak_mib": round(after_mib, 1),
        "above_mib": round(after_mib - before_mib, 1),
        "seconds": round(seconds, 1),
    }


def _peak_mib() -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
