"""Draws street-like pictures as JPEG files with their classes as PNG files, for `street_speed.py`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

NUM_CLASSES = 19
QUALITY = 92
_SKY, _ROAD = 10, 0


@dataclass(frozen=True)
class Streets:
    """Pictures and classes in folders train/ and val/, as `format = "folders"` reads them."""

    root: Path
    size_px: tuple[int, int]
    classes: tuple[int, ...]  # values in the labels
    ignored: int = 255
    images: str = "{part}/images/*.jpg"
    labels: str = "../labels/{stem}.png"

    def pairs(self, part: str) -> list[tuple[Path, Path]]:
        """Return the pictures of a part with their labels."""
        found = sorted(self.root.glob(self.images.format(part=part)))
        return [(path, (path.parent / self.labels.format(stem=path.stem)).resolve()) for path in found]


def draw_streets(root: Path, size_px: tuple[int, int], num: int, num_processes: int) -> Streets:
    """Draw so many pictures to learn from, and one more."""
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (root / part / kind).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(num_processes) as pool:
        list(pool.map(partial(_draw, root, size_px), range(num + 1)))
    return Streets(root, size_px, tuple(range(NUM_CLASSES)))


def camvid(root: Path) -> Streets:
    """Describe a CamVid folder in which labels are class numbers, 11 for void."""
    first = next(iter(sorted((root / "train" / "images").iterdir())), None)
    if first is None:
        raise SystemExit(
            f"{root / 'train' / 'images'}: no picture; wanted CamVid with labels of class numbers"
        )
    with Image.open(first) as opened:
        size_px = opened.height, opened.width
    return Streets(root, size_px, tuple(range(11)), 11, f"{{part}}/images/*{first.suffix}")


def _draw(root: Path, size_px: tuple[int, int], number: int) -> None:
    """Draw a sky, a road, and boxes of all classes, the nearer the larger, with the grain of a camera."""
    rng = np.random.default_rng(number)
    height, width = size_px
    labels = np.full(size_px, _SKY, np.uint8)
    labels[height // 2 :] = _ROAD
    for _ in range(60):
        near = rng.random()
        bottom = int(height * (0.5 + 0.5 * near))
        tall, wide = (max(2, int(side * (0.03 + 0.3 * near * rng.random()))) for side in size_px)
        left = int(rng.integers(0, width))
        labels[max(0, bottom - tall) : bottom, left : left + wide] = rng.integers(NUM_CLASSES)
    colours = np.random.default_rng(7).integers(30, 226, (NUM_CLASSES, 3))
    shade = np.linspace(0.8, 1.2, height)[:, None, None] + 0.1 * rng.standard_normal((height, width, 1))
    pixels = colours[labels] * shade + 6 * rng.standard_normal((height, width, 3))
    folder = root / ("val" if number == 0 else "train")
    picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    picture.save(folder / "images" / f"{number:04d}.jpg", quality=QUALITY)
    Image.fromarray(labels).save(folder / "labels" / f"{number:04d}.png", compress_level=1)
