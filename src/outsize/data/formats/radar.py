"""The format `radar`: frames of rain in netCDF-4, HDF5 (ODIM) or GeoTIFF, cut into windows and shared out by time."""

from __future__ import annotations

from pathlib import Path

from outsize.data.formats.layout import Layout
from outsize.data.radar import FrameStore, FrameWindow, cut, frame_files, frames_in_order, share
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, OutsizeError, explain
from outsize.job import DataSection


def find_radar(data: DataSection, seed: int) -> Layout:  # noqa: ARG001 (as all formats)
    """Find the frames below the root, cut them into windows, and share these out."""
    paths = frame_files(Path(data.root))
    if not paths:
        need, remedy = "files of frames: netCDF-4, HDF5, GeoTIFF", "correct data.root"
        return Layout(faults=(DataError(explain(f"no frame in {data.root}", "nothing", need, remedy)),))
    try:
        frames, bad = frames_in_order(paths, data.frames)
        if len(bad) > data.max_bad_share * len(paths):
            return Layout(faults=tuple(bad))
        windows, num_gaps = cut(frames, data.frames)
        shared = share(windows, data.split)
    except OutsizeError as error:
        return Layout(faults=(error,))
    if data.frames.backwards:
        shared["train"] = [*shared["train"], *(window.backwards() for window in shared["train"])]
    known: dict[Path, FrameWindow] = {}
    keys = {split: tuple(_key(known, window) for window in held) for split, held in shared.items()}
    store = FrameStore(frames, data.frames)

    def open_scene(path: Path, cache: Path) -> LabelledScene:
        return store.scene(known[path], cache)

    notes = [f"left out, and a gap: {error}" for error in bad]
    if num_gaps:
        num = data.frames.num_in + data.frames.num_out
        notes.append(f"{num_gaps:,} windows of {num} frames left out, for a frame or more is missing in them")
    return Layout(keys, open_scene, notes=tuple(notes), bands=data.frames.input_names)


def _key(known: dict[Path, FrameWindow], window: FrameWindow) -> Path:
    """Name a window by the file of its last input, or by that and a number where a file has several frames."""
    last = window.inputs[-1]
    key = last.path if last.number == 0 else last.path.with_name(f"{last.path.name}#{last.number}")
    key = key.with_name(f"{key.name}#backwards") if window.is_backwards else key
    known[key] = window
    return key
