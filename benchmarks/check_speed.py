"""How fast pictures are checked, against bare decoding of the same files: interleaved rounds, medians.

python benchmarks/check_speed.py [SIDE_PX] [NUM_PICTURES]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, __version__

from outsize.data.catalogue import make_splits
from outsize.data.checking.check import check_data, open_and_count
from outsize.data.checking.checked import save
from outsize.job import DataSection
from outsize.progress import Reporter

NUM_THREADS, NUM_CLASSES, NUM_ROUNDS = 2, 5, 7


def main(side_px: int = 512, num_pictures: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_pictures(folder, side_px, num_pictures)
        pairs = [
            (path, folder / "masks" / f"{path.stem}.png") for path in sorted((folder / "images").iterdir())
        ]
        bare_s, check_s = [], []
        for _ in range(NUM_ROUNDS):
            bare_s.append(timed(lambda: decode(pairs)))
            check_s.append(timed(lambda: check(folder)))
    shares = [bare / checked for bare, checked in zip(bare_s, check_s, strict=True)]
    result = {
        "side_px": side_px,
        "num_pictures": num_pictures,
        "bare_per_s": num_pictures / statistics.median(bare_s),
        "check_per_s": num_pictures / statistics.median(check_s),
        "share": statistics.median(shares),
        "shares": shares,
        "cores": os.cpu_count(),
        "threads": NUM_THREADS,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "pillow": __version__},
    }
    print(json.dumps(result, indent=2))


def draw_pictures(folder: Path, side_px: int, num_pictures: int) -> None:
    """Draw smooth pictures with grain, and masks of rectangles."""
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    size = (side_px, side_px)
    for number in range(num_pictures):
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (side_px // 16, side_px // 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR))
        grain = rng.normal(0, 6, smooth.shape)
        pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:04}.jpg", quality=90)
        mask = rng.integers(0, NUM_CLASSES, (side_px // 32, side_px // 32), dtype=np.uint8)
        Image.fromarray(mask).resize(size, Image.Resampling.NEAREST).save(
            folder / "masks" / f"{number:04}.png"
        )


def decode(pairs: list[tuple[Path, Path]]) -> None:
    """Decode each picture and its mask to arrays, and do nothing with them."""

    def both(pair: tuple[Path, Path]) -> int:
        return sum(np.asarray(Image.open(path)).size for path in pair)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(both, pairs))


def check(folder: Path) -> None:
    """Do all that `outsize check` does, from finding the files to writing data.json."""
    data = DataSection.model_validate(
        {
            "format": "folders",
            "images": [f"{folder}/images/*.jpg"],
            "labels": "../masks/{stem}.png",
            "classes": [{"name": f"class_{value}", "value": value} for value in range(NUM_CLASSES)],
        }
    )
    survey, known = open_and_count(
        data, seed=0, cache=folder / "labels", num_threads=NUM_THREADS, reporter=Reporter("quiet")
    )
    splits = make_splits(survey, data, seed=0, halo_px=0)
    checked = check_data(data, splits, num_threads=NUM_THREADS, known=known)
    assert not checked.problems, checked.problems
    save(folder / "data.json", data, splits, checked)


def timed(work: object) -> float:
    assert callable(work)
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
