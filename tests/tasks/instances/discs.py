"""A perfect detector of bright discs, and scenes of them: what goes wrong with it is the tiling's fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from outsize.raster.reading import SceneInfo, describe

SIDE = 28


class DiscDetector(nn.Module):
    """Finds what is bright, one object for each connected region, and answers as a Mask R-CNN does.

    The small mask is the region itself, averaged over 28 x 28 cells of its box, as a perfect network would have it.
    """

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))
        self.num_classes = num_classes

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        return [self._answer(image[0].numpy() > float(self.level)) for image in images.float()]

    def _answer(self, bright: NDArray[np.bool_]) -> dict[str, Tensor]:
        labels, _ = ndimage.label(bright)
        boxes, masks, classes, scores = [], [], [], []
        for number, (rows, cols) in enumerate(ndimage.find_objects(labels), start=1):
            part = labels[rows, cols] == number
            boxes.append([cols.start, rows.start, cols.stop, rows.stop])
            masks.append(_small(part))
            classes.append(1 + part.sum() % self.num_classes)
            scores.append(0.5 + 0.4 * min(1.0, part.sum() / 1000))
        return {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor([int(each) for each in classes], dtype=torch.int64),
            "scores": torch.tensor([float(each) for each in scores], dtype=torch.float32),
            "masks": torch.from_numpy(np.array(masks, np.float32).reshape(-1, 1, SIDE, SIDE)),
        }


def _small(part: NDArray[np.bool_]) -> NDArray[np.float32]:
    picture = torch.from_numpy(part.astype(np.float32))[None, None]
    small = torch.nn.functional.interpolate(picture, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return small[0, 0].numpy()


def draw_discs(
    height: int, width: int, num: int, *, seed: int = 0, radii: tuple[int, int] = (5, 14)
) -> tuple[NDArray[np.uint8], list[tuple[int, int, int]]]:
    """Draw discs that do not touch; return the picture and (row, column, radius) of each."""
    chance = np.random.default_rng(seed)
    picture, discs = np.zeros((height, width), np.uint8), []
    for _ in range(200 * num):
        if len(discs) == num:
            break
        radius = int(chance.integers(*radii))
        row, col = int(chance.integers(radius, height - radius)), int(chance.integers(radius, width - radius))
        if all(np.hypot(row - r, col - c) > radius + other + 3 for r, c, other in discs):
            rows, cols = np.ogrid[row - radius : row + radius + 1, col - radius : col + radius + 1]
            disc = (rows - row) ** 2 + (cols - col) ** 2 <= radius**2
            picture[row - radius : row + radius + 1, col - radius : col + radius + 1][disc] = 200
            discs.append((row, col, radius))
    return picture, discs


def write_scene(path: Path, picture: NDArray[np.uint8], crs: str | None = "EPSG:32633") -> SceneInfo:
    """Write a scene of one band with pixels of half a metre."""
    import rasterio
    from affine import Affine

    place = {"crs": crs, "transform": Affine(0.5, 0, 400_000, 0, -0.5, 5_800_000)} if crs else {}
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        height=picture.shape[0],
        width=picture.shape[1],
        count=1,
        dtype="uint8",
        tiled=True,
        blockxsize=256,
        blockysize=256,
        **place,
    ) as file:
        file.write(picture, 1)
    return describe(path)
