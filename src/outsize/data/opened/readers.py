"""Open scenes, as many as fit a limit: those not used for longest are closed to make room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from outsize.data.opened.decoded import DecodedPictures, can_share_decoded
from outsize.raster.reading import SceneInfo, SceneReader

LIMIT_BYTES = 2 * 2**30
_RASTER_BYTES = (
    32 * 2**20
)  # its handles, one for each thread: this keeps the number of open files below 1,000


@dataclass
class _Open:
    reader: SceneReader
    size_bytes: int
    num_users: int = 0


class OpenScenes:
    """Lends readers to any number of threads; a picture stays decoded while its reader is open."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES, decoded: DecodedPictures | None = None) -> None:
        """Pictures that are in `decoded` are not counted to the limit."""
        self._decoded = decoded
        self._limit_bytes, self._used_bytes = limit_bytes, 0
        self._open: OrderedDict[SceneInfo, _Open] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[OpenScenes], tuple[int, DecodedPictures | None]]:
        """In another process, files are opened again; what is decoded is shared with it."""
        return OpenScenes, (self._limit_bytes, self._decoded)

    @contextmanager
    def lend(self, info: SceneInfo) -> Iterator[SceneReader]:
        """Give the reader of a scene, which stays open at least as long as the block."""
        with self._lock:
            each = self._open.get(info)
            if each is None:
                each = self._open[info] = self._opened(info)
                self._used_bytes += each.size_bytes
            self._open.move_to_end(info)
            each.num_users += 1
        try:
            yield each.reader
        finally:
            with self._lock:
                each.num_users -= 1
                self._make_room()

    def close(self) -> None:
        """Close every scene; none may be in use."""
        with self._lock:
            for each in self._open.values():
                each.reader.close()
            self._open.clear()
            self._used_bytes = 0
            if self._decoded is not None:
                self._decoded.close()

    def _opened(self, info: SceneInfo) -> _Open:
        if self._decoded is not None and self._decoded.holds(info):
            return _Open(SceneReader(info, self._decoded.read), 0)
        return _Open(SceneReader(info), _size_bytes(info))

    def _make_room(self) -> None:
        if self._used_bytes <= self._limit_bytes:
            return  # without a look at all keys
        for info in list(self._open):
            if self._used_bytes <= self._limit_bytes:
                return
            if self._open[info].num_users == 0:
                each = self._open.pop(info)
                each.reader.close()
                self._used_bytes -= each.size_bytes


def ready_for_processes(infos: Sequence[SceneInfo], num_processes: int, limit_bytes: int) -> OpenScenes:
    """Return what as many processes may have copies of: pictures up to a limit are decoded once for all.

    Of the others each holds so much less that all of them hold no more than one would.
    """
    decoded = DecodedPictures(infos, limit_bytes) if limit_bytes and can_share_decoded() else None
    return OpenScenes(LIMIT_BYTES // num_processes, decoded)


def _size_bytes(info: SceneInfo) -> int:
    if info.band_indexes:
        return _RASTER_BYTES
    num_bands = info.num_bands + (info.alpha_index is not None)
    return info.num_px * num_bands * np.dtype(info.dtype).itemsize
