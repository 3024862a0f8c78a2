"""Keeps finished cores: pixels go straight into tiled TIFFs, and one mark per tile says that they are there.

A tile's mark is written after its pixels. Both then belong to the operating system, so a killed process loses
neither. Only a crash of the machine can lose pixels and keep a mark; therefore marks have two grades:

    0 not done    1 written: believed while the machine runs on    2 synced to disk: always believed

Several processes may fill one store, each with tiles of its own: one opens it, then the others join, and when all have
closed it one finishes. A process writes no marks but those of its own tiles, byte by byte, for of the others' it knows
only what was there when it came. Of another machine nobody here sees a crash: a process there writes no mark of the
first grade.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outsize.errors import OutputError, explain
from outsize.raster import disk
from outsize.raster.reading import SceneInfo
from outsize.raster.writing.layout import BlockLayout, lay_out
from outsize.tiles.window import Window

_STATE, _MARKS, _PARTIAL = "tiles.json", "tiles.done", "tiles.partial"
_UNANSWERED = "tiles.unanswered"  # lines of a tile and its pixels without an answer
_WRITTEN, _SYNCED = 1, 2
_SYNC_INTERVAL_S = 10.0
_COG_SHARE = 1.4  # a COG that does not compress at all: pixels plus a third for overviews
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Layer:
    """One raster that grows tile by tile: class ids, or a confidence."""

    name: str
    dtype: str
    num_bands: int = 1
    nodata: float | None = None


class TileStore:
    """A folder of growing rasters, one TIFF per layer, written by one thread of each process; use it in a `with` block.

    An interrupted store is taken up again by `open` with the same key; a different key starts over.
    """

    def __init__(
        self, folder: Path, info: SceneInfo, layouts: dict[str, BlockLayout], num_tiles: int
    ) -> None:
        self.folder, self.info = folder, info
        self._layouts = layouts
        self._files: dict[str, FileIO] = {}
        self._marks = bytearray(num_tiles)
        self._unsynced: list[
            int
        ] = []  # tiles of this process, whose marks a crash of the machine would make untrue
        self._mark_file: FileIO | None = None
        self._last_sync_s = time.monotonic()
        self._is_far = False  # from the machine of the process that opened it
        self._notes = (
            folder / _UNANSWERED
        )  # of this process alone: two that append may lose lines on a shared disk

    @classmethod
    def open(
        cls,
        folder: Path,
        info: SceneInfo,
        layers: tuple[Layer, ...],
        num_tiles: int,
        key: str,
        block_px: int = 512,
        *,
        joins: bool = False,
    ) -> TileStore:
        """Take up the store in `folder`, or begin one there; `key` names all that decides the pixels.

        A process that `joins` does neither: another one of the same job has. Blocks that two tiles share are read and
        written again, so where several processes fill a store, cores are whole blocks.
        """
        size = (info.height, info.width)
        layouts = {
            layer.name: lay_out(size, layer.num_bands, layer.dtype, block_px, info.georef, layer.nodata)
            for layer in layers
        }
        store = cls(folder, info, layouts, num_tiles)
        state = {"key": key, "num_tiles": num_tiles, "size": list(size), "block_px": block_px}
        state["layers"] = [[layer.name, layer.dtype, layer.num_bands, repr(layer.nodata)] for layer in layers]
        if joins:
            store._join(state)
            return store
        is_new_folder = disk.make_private_folder(folder)
        with disk.disk_errors(folder):
            found = _read_state(folder / _STATE)
            if {**found, "boot_id": ""} != {**state, "boot_id": ""} or not store._files_are_whole():
                store._begin(is_new_folder)
                found = {}
            store._take_up(state, found.get("boot_id"))
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def path(self, layer: str) -> Path:
        """Return the file of a layer."""
        return self.folder / f"{layer}.tif"

    @property
    def num_done(self) -> int:
        """Tiles that are finished."""
        return len(self._marks) - self._marks.count(0)

    @property
    def num_bytes(self) -> int:
        """What its files take of the disk."""
        found = [self.path(name) for name in self._layouts]
        return sum(512 * path.stat().st_blocks for path in found if path.is_file())

    def is_done(self, tile_index: int) -> bool:
        """Say whether a tile's pixels are all in the files."""
        return self._marks[tile_index] != 0

    @property
    def num_unanswered(self) -> int:
        """Valid pixels without an answer of the model, in all finished tiles: also those of an earlier run."""
        lines = [line for notes in self._all_notes() for line in notes.read_text().splitlines()]
        # one that a crash cut short is that of a tile which was not finished, and has another behind it
        found = {int(index): int(num_px) for index, num_px in (line.split() for line in lines if " " in line)}
        return sum(num_px for index, num_px in found.items() if self.is_done(index))

    def write(
        self, tile_index: int, core: Window, arrays: dict[str, NDArray[Any]], num_unanswered: int = 0
    ) -> None:
        """Write a finished core, one array (rows, columns) or (bands, rows, columns) per layer, and mark it.

        The arrays may be as large as the core or as its part inside the scene. Cores that begin on a multiple
        of the block size are fastest: others read what neighbours have left in the blocks they share.
        """
        inside = core.intersect(self.info.window)
        with disk.disk_errors(self.folder):
            for name, layout in self._layouts.items():
                pixels = _clip(arrays[name], core, inside, layout)
                _write_blocks(self._files[name], layout, inside, pixels)
            if num_unanswered:
                with self._notes.open("a") as notes:
                    notes.write(f"\n{tile_index} {num_unanswered}")
                    notes.flush()
                    os.fsync(notes.fileno())
            self._mark(tile_index)

    def close(self) -> None:
        """Close the files; what is done so far stays and can be taken up again, also after a crash."""
        if self._mark_file is None:
            return
        with disk.disk_errors(self.folder):
            if self._marks.count(0):  # others may not have finished, or an earlier run has not
                self._sync()
            self._close_files()

    def discard(self) -> None:
        """Delete the store: its result was taken over, or cannot be finished."""
        self._erase(remove_folder=True)

    def _mark(self, tile_index: int) -> None:
        assert self._mark_file is not None
        self._marks[tile_index] = _WRITTEN
        self._unsynced.append(tile_index)
        if not self._is_far:
            _write_at(self._mark_file, tile_index, bytes([_WRITTEN]))
        if time.monotonic() - self._last_sync_s > _SYNC_INTERVAL_S:
            self._sync()

    def _sync(self) -> None:
        """Raise this process's marks to the grade that outlives a crash of the machine: pixels first, then marks."""
        assert self._mark_file is not None
        for file in self._files.values():
            os.fsync(file.fileno())
        for tile_index in self._unsynced:
            self._marks[tile_index] = _SYNCED
            _write_at(self._mark_file, tile_index, bytes([_SYNCED]))
        self._unsynced = []
        os.fsync(self._mark_file.fileno())
        self._last_sync_s = time.monotonic()

    def _begin(self, is_new_folder: bool) -> None:
        """Lay out empty files, or leave none."""
        try:
            # The state goes first and comes last: a store without one is not believed.
            for path in (self.folder / _STATE, *self._all_notes()):
                path.unlink(missing_ok=True)
            self._need_space()
            for name, layout in self._layouts.items():
                with self.path(name).open("wb") as file:
                    file.write(layout.header)
                    file.truncate(layout.file_bytes)
            (self.folder / _MARKS).write_bytes(bytes(self._marks))
        except BaseException:
            self._erase(is_new_folder)
            raise

    def _take_up(self, state: dict[str, Any], old_boot_id: str | None) -> None:
        boot_id, mark_path = _boot_id(), self.folder / _MARKS
        self._marks = bytearray(mark_path.read_bytes())
        if old_boot_id not in (None, boot_id):
            self._marks = bytearray(mark if mark == _SYNCED else 0 for mark in self._marks)
            mark_path.write_bytes(bytes(self._marks))
        partial = self.folder / _PARTIAL
        partial.write_text(json.dumps({**state, "boot_id": boot_id}, indent=1) + "\n")
        partial.replace(self.folder / _STATE)
        # written, but not synced, by a process that was killed: the kernel still has the pixels
        self._unsynced = [index for index, mark in enumerate(self._marks) if mark == _WRITTEN]
        self._open_files()

    def _join(self, state: dict[str, Any]) -> None:
        """Open what another process has begun, or taken up, for this one as well."""
        found = _read_state(self.folder / _STATE)
        if {**found, "boot_id": ""} != {**state, "boot_id": ""}:
            need = f"the same key in {self.folder}, which all processes see"
            raise OutputError(
                explain("a map that others fill", found.get("key", "no store"), need, "use one shared folder")
            )
        self._is_far = found.get("boot_id") != _boot_id()
        self._notes = self.folder / f"{_UNANSWERED}.{socket.gethostname()}.{os.getpid()}"
        with disk.disk_errors(self.folder):
            self._marks = bytearray((self.folder / _MARKS).read_bytes())
            self._open_files()

    def refresh(self) -> None:
        """Look which tiles other processes have finished."""
        self._marks = bytearray((self.folder / _MARKS).read_bytes())

    def _all_notes(self) -> list[Path]:
        return sorted(self.folder.glob(f"{_UNANSWERED}*"))

    def _open_files(self) -> None:
        self._mark_file = FileIO(self.folder / _MARKS, "r+")
        self._files = {name: FileIO(self.path(name), "r+") for name in self._layouts}

    def _files_are_whole(self) -> bool:
        sizes = {self.path(name): layout.file_bytes for name, layout in self._layouts.items()}
        sizes[self.folder / _MARKS] = len(self._marks)
        return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())

    def _need_space(self) -> None:
        num_bytes = sum(layout.file_bytes for layout in self._layouts.values())
        disk.need_space(self.folder, int(num_bytes * (1 + _COG_SHARE)), "the map and its working copy")

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        if self._mark_file is not None:
            self._mark_file.close()
        self._files, self._mark_file = {}, None

    def _erase(self, remove_folder: bool) -> None:
        self._close_files()
        for path in (
            *(self.folder / name for name in (_STATE, _MARKS, _PARTIAL)),
            *self._all_notes(),
            *(self.path(name) for name in self._layouts),
        ):
            with suppress(OSError):
                path.unlink()
        if remove_folder:
            with suppress(OSError):  # others have put files there
                self.folder.rmdir()


def _clip(array: NDArray[Any], core: Window, inside: Window, layout: BlockLayout) -> NDArray[Any]:
    """Return the part of a core's array that lies inside the scene, as (bands, rows, columns)."""
    pixels = array if array.ndim == 3 else array[None]
    if pixels.shape == (layout.num_bands, core.height, core.width):
        rows, cols = inside.within(core).slices
        pixels = pixels[:, rows, cols]
    if pixels.shape != (layout.num_bands, inside.height, inside.width) or pixels.dtype != layout.dtype:
        raise ValueError(f"{array.shape} {array.dtype} does not fit {core} in {layout.dtype}")
    return pixels


def _write_blocks(file: FileIO, layout: BlockLayout, inside: Window, pixels: NDArray[Any]) -> None:
    step = layout.block_px
    scene = Window(0, 0, layout.height, layout.width)
    for row in range(inside.row // step * step, inside.row_end, step):
        for col in range(inside.col // step * step, inside.col_end, step):
            block = Window(row, col, step, step)
            part = block.intersect(inside)
            from_rows, from_cols = part.within(inside).slices
            to_rows, to_cols = part.within(block).slices
            is_shared = part != block.intersect(scene)
            for band in range(layout.num_bands):
                offset = layout.offset(band, row // step, col // step)
                if part == block:
                    whole = np.ascontiguousarray(pixels[band, from_rows, from_cols])
                else:
                    whole = _read_block(file, offset, layout) if is_shared else _empty_block(layout)
                    whole[to_rows, to_cols] = pixels[band, from_rows, from_cols]
                _write_at(file, offset, whole.data.cast("B"))


def _empty_block(layout: BlockLayout) -> NDArray[Any]:
    return np.zeros((layout.block_px, layout.block_px), layout.dtype)


def _read_block(file: FileIO, offset: int, layout: BlockLayout) -> NDArray[Any]:
    file.seek(offset)
    block = _empty_block(layout)
    view = block.data.cast("B")
    while view and (num_read := file.readinto(view)):
        view = view[num_read:]
    return block


def _write_at(file: FileIO, offset: int, data: bytes | bytearray | memoryview) -> None:
    file.seek(offset)
    view = memoryview(data)
    while view:  # a nearly full disk takes a part and refuses the rest at the next call
        view = view[file.write(view) :]


def _read_state(state_file: Path) -> dict[str, Any]:
    if not state_file.is_file():
        return {}
    try:
        found = json.loads(state_file.read_text())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.is_file() else ""
