"""Scenes with painted cars, a detector that sees them, and one that learns nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
import torch
from numpy.typing import NDArray
from rasterio.transform import from_origin
from scipy import ndimage
from torch import Tensor

from outsize.data.statistics import BandStatistics
from outsize.models.fastbox import CellAnswers, FastBox
from outsize.models.unsteady import REAL, Unsteady

STATISTICS = BandStatistics((0.0,) * 3, (1.0,) * 3)


class PaintedFinder(FastBox):
    """Finds what is brighter than its ground; a part at the border of what it sees, too."""

    def __init__(self) -> None:
        super().__init__(num_classes=1, in_channels=3, encoder="resnet18", overlap_px=64)

    def forward(self, images: Tensor) -> CellAnswers:
        """Return the pixels themselves."""
        return CellAnswers(images, images, images, images)

    def find(
        self,
        answers: CellAnswers,
        size_px: tuple[int, int],
        unsteady: Unsteady = REAL,
    ) -> list[dict[str, Tensor]]:
        """Return a box around each bright spot; the score is its brightness."""
        found = []
        for picture in answers.boxes[:, 0].cpu().numpy():
            numbers, _ = ndimage.label(picture > 10)
            rows = [
                (cols.start, rows.start, cols.stop, rows.stop) for rows, cols in ndimage.find_objects(numbers)
            ]
            scores = [float(picture[top:bottom, left:right].max()) / 256 for left, top, right, bottom in rows]
            found.append(
                {
                    "boxes": torch.tensor(rows, dtype=torch.float32).reshape(-1, 4),
                    "labels": torch.ones(len(rows), dtype=torch.int64),
                    "scores": torch.tensor(scores),
                    "sound": torch.tensor(True),
                }
            )
        return found


def paint(height: int, width: int, num: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a picture (band, row, column) and the sides of the cars in it, none of which touch."""
    rng = np.random.default_rng(seed)
    taken, sides = np.zeros((height, width), np.uint8), []
    while len(sides) < num:
        rows, cols = rng.integers(10, 40, 2)
        row, col = rng.integers(0, height - rows), rng.integers(0, width - cols)
        if not taken[max(0, row - 2) : row + rows + 2, max(0, col - 2) : col + cols + 2].any():
            taken[row : row + rows, col : col + cols] = rng.integers(100, 255)
            sides.append((col, row, col + cols, row + rows))
    return np.repeat(taken[None], 3, 0), np.array(sides)


def write_scene(path: Path, pixels: NDArray[np.uint8], *, has_place: bool = True) -> Path:
    """Write a GeoTIFF."""
    place = {"crs": "EPSG:32633", "transform": from_origin(500000, 5500000, 0.5, 0.5)} if has_place else {}
    form = {
        "driver": "GTiff",
        "count": 3,
        "dtype": "uint8",
        "height": pixels.shape[1],
        "width": pixels.shape[2],
    }
    with rasterio.open(path, "w", **form, **place) as target:
        target.write(pixels)
    return path
