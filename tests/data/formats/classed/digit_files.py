"""Small pictures with one class each: IDX files, and folders of classes."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from outsize.job import DataSection


def write_idx(path: Path, numbers: NDArray[np.uint8]) -> Path:
    """Write an IDX file of bytes, gzipped where its name says so."""
    head = bytes((0, 0, 8, numbers.ndim)) + np.array(numbers.shape, ">u4").tobytes()
    packed = head + numbers.tobytes()
    path.write_bytes(gzip.compress(packed) if path.suffix == ".gz" else packed)
    return path


def draw_idx(root: Path, num: int = 40, num_test: int = 10, ending: str = ".gz", side: int = 12) -> None:
    """Write train and test files of pictures whose class is how bright they are."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", num), ("t10k", num_test)):
        classes = np.arange(count, dtype=np.uint8) % 10
        noise = rng.integers(0, 20, (count, side, side), np.uint8)
        write_idx(root / f"{name}-images-idx3-ubyte{ending}", noise + 20 * classes[:, None, None])
        write_idx(root / f"{name}-labels-idx1-ubyte{ending}", classes)


def draw_classes(
    root: Path, names: Sequence[str] = ("cat", "dog"), num: int = 6, size: tuple[int, int] = (12, 16)
) -> None:
    """Write a folder of pictures in colours for each class."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for index in range(num):
            pixels = rng.integers(90 * number, 90 * number + 60, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")


def section(format_name: str, root: Path, names: Sequence[str] = (), **keys: Any) -> DataSection:
    """Return the section on data of a job that classifies pictures."""
    if names:
        keys["classes"] = [{"name": name, "value": value} for value, name in enumerate(names)]
    known = {"classes": [{"name": str(value), "value": value} for value in range(10)], **keys}
    return DataSection.model_validate({"format": format_name, "root": str(root), "pictures": True, **known})
