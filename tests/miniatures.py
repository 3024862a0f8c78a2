"""Published datasets in miniature: the layout on disk, a few small pictures, and the defects of the originals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from outsize.known.tables import table


def blobs(height: int, width: int, num_classes: int, seed: int) -> NDArray[np.uint8]:
    """Draw rectangles of classes over class 0."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((height, width), np.uint8)
    for number in range(6 * num_classes):
        row, col = int(rng.integers(height - 24)), int(rng.integers(width - 24))
        labels[row : row + 20, col : col + 20] = number % num_classes
    return labels


def colours(labels: NDArray[np.uint8], num_bands: int) -> NDArray[np.uint8]:
    """Draw each class in a colour of its own, with noise: (bands, rows, columns)."""
    rng = np.random.default_rng(1)
    palette = rng.integers(30, 220, (256, num_bands))
    noise = rng.integers(0, 30, (num_bands, *labels.shape))
    return (np.moveaxis(palette[labels], -1, 0) + noise).astype(np.uint8)


def photo(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Draw a picture of the labels: (rows, columns, red-green-blue)."""
    return np.moveaxis(colours(labels, 3), 0, -1)


def save(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    """Write a picture, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def draw_cityscapes(
    root: Path, cities: Sequence[tuple[str, str]] = (("train", "aachen"), ("train", "ulm"), ("val", "lindau"))
) -> None:
    """Two pictures of each city, with fine and coarse labels, instances, and every label id there is."""
    ids = np.array([*range(34), 34], np.uint8)
    for number, (split, city) in enumerate(cities):
        for frame in (19, 20):
            name = f"{split}/{city}/{city}_000000_{frame:06d}"
            labels = ids[blobs(96, 128, 35, 10 * number + frame)]
            save(root / f"leftImg8bit/{name}_leftImg8bit.png", photo(labels))
            save(root / f"gtFine/{name}_gtFine_labelIds.png", labels)
            save(root / f"gtFine/{name}_gtFine_color.png", photo(labels))
            instances = np.where(labels >= 24, labels.astype(np.uint16) * 1000 + 2, labels).astype(np.uint16)
            save(root / f"gtFine/{name}_gtFine_instanceIds.png", instances)
            save(
                root / f"gtCoarse/{name}_gtCoarse_labelIds.png",
                np.where(labels > 11, labels, 0).astype(np.uint8),
            )


def draw_camvid_colours(root: Path, num: int = 8) -> None:
    """The original: frames in one folder, labels in 32 colours."""
    known = table("camvid")
    palette = [*known["void"].values(), *(c for each in known["classes"] for c in each["members"].values())]
    for number in range(num):
        labels = blobs(96, 128, len(palette), number)
        name = f"0001TP_{6690 + 30 * number:06d}"
        save(root / f"701_StillsRaw_full/{name}.png", photo(labels))
        save(root / f"LabeledApproved_full/{name}_L.png", np.array(palette, np.uint8)[labels])


def draw_camvid_index(root: Path, pictures: str = "{}/images", masks: str = "{}/labels") -> None:
    """A release of class numbers, 11 for void, split by folder."""
    for split, drive, num in (("train", "0006R0", 4), ("val", "0016E5", 2)):
        for number in range(num):
            labels = blobs(96, 128, 12, num + number)
            suffix = "jpg" if "/" in pictures else "png"
            save(root / pictures.format(split) / f"{drive}_{number:05d}.{suffix}", photo(labels))
            save(root / masks.format(split) / f"{drive}_{number:05d}.png", labels)


def square(row: int, col: int, side: int) -> list[float]:
    """Return the outline of a square as COCO writes it: x, y, x, y, ..."""
    return [col, row, col + side, row, col + side, row + side, col, row + side]


def draw_taco(root: Path, num: int = 8) -> dict[str, Any]:
    """TACO with its defects: ids from 0 and there twice, boxes out of the picture, .JPG for .jpg, photos that lie.

    Photo 1 was taken upright and is stored lying, as its EXIF says; outlines are those of the upright photo.
    """
    names: list[str] = table("taco")["categories"]
    images, annotations = [], []
    for number in range(num):
        height, width = (128, 96) if number % 2 else (96, 128)
        labels = np.zeros((height, width), np.uint8)
        for each in range(4):
            row, col = 4 + 24 * each, 8 + 16 * ((number + each) % 3)
            category = (7 * number + 11 * each) % 60
            labels[row : row + 16, col : col + 16] = category + 1
            outline = [square(row, col, 16)]
            box = [-1.3 if col == 8 else col, row, 16, 16]
            about = {"image_id": number, "category_id": category, "iscrowd": 0, "area": 256.0}
            annotations.append({"id": len(annotations), "segmentation": outline, "bbox": box, **about})
        suffix = "JPG" if number == 2 else "jpg"
        path = root / f"batch_1/{number:06d}.{suffix}"
        if number == 1:
            lying = Image.Exif()
            lying[274] = 6  # to be turned clockwise by a quarter
            save(path, np.ascontiguousarray(np.rot90(photo(labels))), exif=lying, quality=95)
        else:
            save(path, photo(labels), format="JPEG", quality=95)
        file_name = f"batch_1/{number:06d}.{'jpg' if number == 2 else suffix}"
        about = {"flickr_url": "https://example.org/0.png", "flickr_640_url": None}
        images.append({"id": number, "file_name": file_name, "height": height, "width": width, **about})
    annotations[5]["id"] = annotations[4]["id"]
    categories = [{"id": number, "name": name, "supercategory": name} for number, name in enumerate(names)]
    tree = {"images": images, "annotations": annotations, "categories": categories, "licenses": []}
    (root / "annotations.json").write_text(json.dumps(tree))
    return tree
