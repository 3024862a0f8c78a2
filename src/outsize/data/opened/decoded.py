"""Decoded pictures in memory that processes share: each is decoded once, by whoever needs it first."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.raster.reading import SceneInfo, decode_picture

_ALIGN_BYTES = 64
_Key = tuple[str, int, bool]  # the file, and how it is read
_Slot = tuple[int, int, tuple[int, int, int], str]  # number, first byte, height x width x bands, dtype


class DecodedPictures:
    """Holds as many pictures as a limit allows, for this process and for those that get a pickled copy.

        | a byte for each picture: is it here? | picture 0 | picture 1 | ...

    Nothing is locked: two processes that decode a picture at the same time write the same bytes, and the byte that
    says that it is here is written last. Which pictures have a place is settled at the beginning: samples are drawn
    anywhere, so that no picture is worth more than another. The memory is that of a file without a name, which is gone
    when the last process is, however it ends.
    """

    def __init__(self, infos: Iterable[SceneInfo], limit_bytes: int) -> None:
        slots: dict[_Key, _Slot] = {}
        pictures = {_key(info): info for info in infos if is_picture(info)}
        end_bytes = -(-len(pictures) // _ALIGN_BYTES) * _ALIGN_BYTES
        for key, info in pictures.items():
            shape = _shape(info)
            size_bytes = prod(shape) * np.dtype(info.dtype).itemsize
            if end_bytes + size_bytes > limit_bytes:
                break
            slots[key] = len(slots), end_bytes, shape, info.dtype
            end_bytes += -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        self._slots = slots
        self.size_bytes = end_bytes if slots else 0
        self._file: int | None = None
        self._memory: mmap.mmap | None = None
        if slots:
            self._file = os.memfd_create("decoded-pictures")
            os.ftruncate(self._file, end_bytes)
            self._memory = mmap.mmap(self._file, end_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, the memory is that of this one, which must hold it until then."""
        return _elsewhere, (os.getpid(), self._file, self.size_bytes, self._slots)

    def __len__(self) -> int:
        """Count the pictures that have a place."""
        return len(self._slots)

    def holds(self, info: SceneInfo) -> bool:
        """Say whether a picture has a place."""
        return _key(info) in self._slots

    def read(self, info: SceneInfo) -> NDArray[Any]:
        """Return a picture (bands, rows, columns); what has no place is decoded each time."""
        slot = self._slots.get(_key(info))
        if slot is None or self._memory is None:
            return decode_picture(info)
        number, start, shape, dtype = slot
        place = np.ndarray(shape, dtype, self._memory, start)
        if not self._memory[number]:
            place[...] = np.moveaxis(decode_picture(info), 0, 2)
            self._memory[number] = 1
        return np.moveaxis(place, 2, 0)

    def close(self) -> None:
        """Let go of the memory; arrays that were given out keep it until they are gone."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._memory, self._slots = None, None, {}


def can_share_decoded() -> bool:
    """Say whether this system has memory that processes can share without a file system."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def is_picture(info: SceneInfo) -> bool:
    """Say whether a scene is a picture, which is decoded as a whole."""
    return not info.band_indexes


def _elsewhere(pid: int, file: int | None, size_bytes: int, slots: dict[_Key, _Slot]) -> DecodedPictures:
    made = DecodedPictures((), 0)
    if file is not None:
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
        made._memory = mmap.mmap(opened, size_bytes)
        made._file, made._slots, made.size_bytes = opened, slots, size_bytes
    return made


def _key(info: SceneInfo) -> _Key:
    return str(info.path), info.shrink, info.nearest


def _shape(info: SceneInfo) -> tuple[int, int, int]:
    return info.height, info.width, info.num_bands + (info.alpha_index is not None)
