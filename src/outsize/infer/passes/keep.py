"""Maps of the whole picture that one pass makes and a later one reads: in memory, or in files mapped into it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from outsize.graph import Op
from outsize.raster.disk import disk_errors
from outsize.tiles.passes import Map
from outsize.tiles.window import Window


class Keep:
    """The maps that lie between two passes; a folder to put them in, or None for memory."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._maps: dict[int, Tensor] = {}

    def write(self, op: Op, place: Map, window: Window, part: Tensor) -> None:
        """Write a tile's part; the first one decides how numbers are kept."""
        if op.index not in self._maps:
            self._maps[op.index] = self._new(op, place, part.dtype)
        cut(self._maps[op.index], place, window).copy_(part)

    def read(self, index: int, place: Map, window: Window | None, device: torch.device) -> Tensor:
        """Return a window of a map, or all of it."""
        kept = self._maps[index]
        return (kept if window is None else cut(kept, place, window)).to(device)

    def drop(self, index: int) -> None:
        """Let a map go that nobody reads any more."""
        if self._maps.pop(index, None) is not None and self._folder is not None:
            self._path(index).unlink(missing_ok=True)

    def close(self) -> None:
        """Let all go."""
        for index in list(self._maps):
            self.drop(index)

    def _new(self, op: Op, place: Map, dtype: torch.dtype) -> Tensor:
        """Make room; channels lie together, as convolutions like them and rows of windows are long then."""
        num_dims = len(op.shape)
        together = num_dims == 4 and place.axes == (2, 3)
        order = (0, 2, 3, 1) if together else tuple(range(num_dims))
        shape = [op.shape[axis] for axis in order]
        in_memory = self._folder is None
        room = torch.empty(shape, dtype=dtype) if in_memory else _mapped(self._path(op.index), shape, dtype)
        return room.permute(0, 3, 1, 2) if together else room

    def _path(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder / f"map-{index}.bin"


def _mapped(path: Path, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Map a new file into memory; its room on the disk is taken first, for a full disk would end the process later."""
    num = 1
    for size in shape:
        num *= size
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num * dtype.itemsize)
    return torch.from_file(str(path), shared=True, size=num, dtype=dtype).view(shape)


def cut(value: Tensor, place: Map, window: Window) -> Tensor:
    """Return a window of a tensor whose rows and columns lie where the map says."""
    rows, cols = place.axes
    return value.narrow(rows, window.row, window.height).narrow(cols, window.col, window.width)
