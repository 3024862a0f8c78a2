"""The format `idx`: many small grey pictures in one file, their classes in another, plain or gzipped, as MNIST is.

train-images-idx3-ubyte.gz    0 0 8 3, number, rows, columns (four bytes each, the highest first), then all pixels
train-labels-idx1-ubyte.gz    0 0 8 1, number, then a byte for each picture: its class
t10k-..., test-...            the same, to be held back for the test

The pictures of a file become one scene, one below the other, made once in the run folder and decoded as a whole.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.formats.layout import Layout
from outsize.data.made import made_labels, stamp
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, UnsafeFileError, explain, listed
from outsize.files.plain import is_plain
from outsize.job import DataSection
from outsize.tiles.window import Window

_BYTES = 8  # IDX's name of unsigned bytes
_MOST_PX = 178_956_970  # of all pictures of a file, which are decoded as one
_HELD_BACK = ("t10k", "test")


@dataclass(frozen=True)
class IdxPair:
    """A file of pictures, and the file of their classes."""

    pictures: Path
    classes: Path
    shape: tuple[int, int, int]  # pictures, rows, columns

    @property
    def is_test(self) -> bool:
        """Whether it is named as what is held back."""
        return any(word in self.pictures.name.lower() for word in _HELD_BACK)

    def areas(self, first: int, stop: int) -> tuple[Window, ...]:
        """Return where some of the pictures are, one below the other."""
        _, height, width = self.shape
        return (Window(first * height, 0, (stop - first) * height, width),)


def find_idx(data: DataSection, seed: int) -> Layout:  # noqa: ARG001 (as all formats)
    """Find the files below the root; of those for training, the last pictures are for validation."""
    pairs, faults = idx_pairs(Path(data.root))
    train, test = [each for each in pairs if not each.is_test], [each for each in pairs if each.is_test]
    if faults or not train:
        return Layout(faults=tuple(faults) or (_nothing(Path(data.root)),))
    shares = {"val": data.split.val, "test": 0.0 if test else data.split.test}
    areas: dict[str, dict[Path, tuple[Window, ...]]] = {split: {} for split in ("train", *shares)}
    for pair in train:
        stop = pair.shape[0]
        for split in ("test", "val"):
            num = round(shares[split] * pair.shape[0])
            if num:
                areas[split][pair.pictures] = pair.areas(stop - num, stop)
            stop -= num
        areas["train"][pair.pictures] = pair.areas(0, stop)
    shared = {split: tuple(held) for split, held in areas.items()}
    shared["test"] += tuple(each.pictures for each in test)
    found = {each.pictures: each for each in pairs}

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        return _open(found[path], cache)

    return Layout(shared, open_scene, areas=areas)


def idx_pairs(root: Path) -> tuple[list[IdxPair], list[DataError]]:
    """Return the files of pictures in a folder with those of their classes, and what is wrong with them."""
    pairs, faults = [], []
    here = sorted(path for path in root.iterdir() if path.is_file()) if root.is_dir() else []
    for path in here:
        if "images" not in path.name or "idx3" not in path.name or path.name.startswith("."):
            continue
        stem = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
        classes = next((each for each in here if each.name.removesuffix(".gz") == stem), None)
        try:
            if classes is None:
                remedy = "download it, too"
                raise DataError(explain(f"classes of {path} are missing", f"no {stem}", "that file", remedy))
            shape, num = _shape(path, 3), _shape(classes, 1)[0]
            if num != shape[0]:
                need, remedy = f"{shape[0]:,}, as {path.name} has pictures", "take both from one source"
                raise DataError(explain(f"{classes} is of other pictures", f"{num:,} classes", need, remedy))
            pairs.append(IdxPair(path, classes, (shape[0], shape[1], shape[2])))
        except DataError as error:
            faults.append(error)
    return pairs, faults


def read_idx(path: Path, num_axes: int) -> NDArray[np.uint8]:
    """Read all numbers of a file."""
    shape = _shape(path, num_axes)
    data = _read(path, 4 + 4 * num_axes + math.prod(shape) + 1)[4 + 4 * num_axes :]
    if len(data) != math.prod(shape):
        found = f"{len(data):,} bytes" if len(data) < math.prod(shape) else "more"
        need = f"{math.prod(shape):,} for {' x '.join(map(str, shape))}"
        raise DataError(explain(f"{path} is not whole", found, need, "copy it again from its source"))
    return np.frombuffer(data, np.uint8).reshape(shape)


def _shape(path: Path, num_axes: int) -> Sequence[int]:
    """Read the head of a file."""
    head = _read(path, 4 + 4 * num_axes)
    needed = f"an IDX file of bytes with {num_axes} axes"
    if len(head) < 4 + 4 * num_axes or head[:4] != bytes((0, 0, _BYTES, num_axes)):
        found = f"it begins with {' '.join(map(str, head[:4])) or 'nothing'}"
        raise DataError(explain(f"{path} cannot be read", found, needed, "copy it again from its source"))
    shape = np.frombuffer(head, ">u4", offset=4).tolist()
    if not 0 < math.prod(shape) <= _MOST_PX:
        found, need = " x ".join(map(str, shape)), f"at most {_MOST_PX:,} pixels in a file, and one at least"
        raise UnsafeFileError(
            explain(f"{path} claims an impossible size", found, need, "cut it in several files")
        )
    return [int(each) for each in shape]


def _read(path: Path, num_bytes: int) -> bytes:
    """Return what a file begins with, unpacked and no more than asked for: a packed file may hold any number."""
    is_plain(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(num_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            explain(f"{path} cannot be read", error, "a whole file", "copy it again from its source")
        ) from error


def _open(pair: IdxPair, cache: Path) -> LabelledScene:
    num, height, width = pair.shape
    key = f"idx {stamp(pair.pictures)} {stamp(pair.classes)}"

    def lay_out() -> NDArray[np.uint8]:
        return read_idx(pair.pictures, 3).reshape(num * height, width)

    def spread() -> NDArray[np.uint8]:
        classes = read_idx(pair.classes, 1).repeat(height)
        return np.broadcast_to(classes[:, None], (num * height, width))

    image = made_labels(pair.pictures, cache, key, lay_out)
    labels = made_labels(pair.classes, cache, key, spread)
    return LabelledScene(image, labels, picture_px=(height, width))


def _nothing(root: Path) -> DataError:
    here = listed([path.name for path in sorted(root.iterdir())], 8) if root.is_dir() else "no such folder"
    need = "train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or with .gz"
    return DataError(
        explain(f"no pictures to learn from in {root}", here or "nothing", need, "correct data.root")
    )
