"""Frames decoded once, as rasters in the run folder: what training, prediction and scores read.

    frames of a day --> frames-DAY-KEY.tif    levels (data/frames), a band for each frame
    a window        --> TIME.vrt              its inputs, and behind them TIME-flow-KEY.tif: carried on by optical flow
                        TIME-truth.vrt        its targets

A VRT names bands of other files: windows overlap, and each frame is on disk once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from xml.sax.saxutils import escape

import numpy as np

from outsize.data.frames import to_levels
from outsize.data.made import digest, stamp, truth_beside
from outsize.data.motion import advected, find_motion
from outsize.data.radar.frames import Frame, in_a_name
from outsize.data.radar.sequence import FrameWindow
from outsize.data.scenes import LabelledScene
from outsize.job import FramesSection
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE
from outsize.raster.labels import is_made_of
from outsize.raster.reading import SceneInfo, describe
from outsize.raster.writing import write_grids
from outsize.units import clock

Place = tuple[Path, int]  # a file, and a band of it


class FrameStore:
    """Makes the rasters of frames and windows in a folder, each when it is first asked for."""

    def __init__(self, frames: Sequence[Frame], section: FramesSection) -> None:
        self._section = section
        self._days: dict[str, list[Frame]] = {}
        for frame in frames:
            self._days.setdefault(_day(frame), []).append(frame)
        self._keys: dict[str, str] = {}
        self._locks: dict[str, Lock] = {day: Lock() for day in self._days}
        self._flow_key = digest(f"{section.flow} {section.num_out}", 8)

    def scene(self, window: FrameWindow, cache: Path) -> LabelledScene:
        """Describe the inputs of a window with its targets."""
        section = self._section
        stem = in_a_name(window.issued_s) + ("-back" if window.is_backwards else "")
        places = self._places(window.every, cache)
        inputs = [places[frame] for frame in window.inputs]
        if section.flow != "none":
            source = "".join(str(places[frame]) for frame in window.inputs)
            name = f"{stem}-flow-{self._flow_key}-{digest(source, 8)}.tif"
            carried = self._carried(window.inputs, cache / name)
            inputs += [(carried, band) for band in range(1, section.num_out + 1)]
        first = window.inputs[0]
        seen = _write_vrt(cache / f"{stem}.vrt", inputs, section.input_names, first)
        truth = [places[frame] for frame in window.targets]
        named = [clock(frame.time_s) for frame in window.targets]
        targets = _write_vrt(truth_beside(seen), truth, named, first)
        return LabelledScene(describe(seen), describe(targets), is_numbers=True)

    def _places(self, frames: Sequence[Frame], cache: Path) -> dict[Frame, Place]:
        """Return where frames are, decoding those of days that were not yet."""
        found: dict[Frame, Place] = {}
        for day in dict.fromkeys(map(_day, frames)):
            path = self._decoded(day, cache)
            found |= {frame: (path, band) for band, frame in enumerate(self._days[day], start=1)}
        return found

    def _decoded(self, day: str, cache: Path) -> Path:
        held = self._days[day]
        with self._locks[day]:
            if day not in self._keys:
                parts = [f"{stamp(frame.path)} {frame.number} {frame.time_s}" for frame in held]
                self._keys[day] = digest(f"{parts} {self._section.variable} {self._section.unit}")
            key = self._keys[day]
            path = cache / f"frames-{day}-{key[:8]}.tif"
            if not is_made_of(path, key):
                levels = np.stack([to_levels(frame.read()) for frame in held])
                write_grids(path, held[0].georef, levels, [clock(frame.time_s) for frame in held], key=key)
        return path

    def _carried(self, inputs: Sequence[Frame], path: Path) -> Path:
        if not is_made_of(path, path.stem):
            write_carried(path, inputs, self._section)
        return path


def write_carried(path: Path, inputs: Sequence[Frame], section: FramesSection) -> None:
    """Write the last frame, carried on by its motion."""
    levels = [to_levels(frame.read()) for frame in inputs[-4:]]
    made = advected(levels[-1], find_motion(levels, section.flow), section.num_out)
    write_grids(path, inputs[-1].georef, made, [f"flow {name}" for name in section.lead_names], key=path.stem)


def newest_scene(inputs: Sequence[Frame], section: FramesSection, cache: Path) -> SceneInfo:
    """Describe a file of the frames that a forecast starts from, which it makes."""
    levels = np.stack([to_levels(frame.read()) for frame in inputs])
    if section.flow != "none":
        motion = find_motion(list(levels), section.flow)
        levels = np.concatenate((levels, advected(levels[-1], motion, section.num_out)))
    path = cache / f"{in_a_name(inputs[-1].time_s)}.tif"
    write_grids(path, inputs[0].georef, levels, section.input_names, key="newest")
    return describe(path)


def _day(frame: Frame) -> str:
    return datetime.fromtimestamp(frame.time_s, UTC).strftime("%Y%m%d")


def _write_vrt(path: Path, places: Sequence[Place], names: Sequence[str], grid: Frame) -> Path:
    """Write a raster whose bands are those of others, unless it is there."""
    text = _as_vrt(places, names, grid)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    with disk.replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _as_vrt(places: Sequence[Place], names: Sequence[str], grid: Frame) -> str:
    size = f'xSize="{grid.width}" ySize="{grid.height}"'
    place = ""
    if grid.georef != NO_PLACE:
        a, b, c, d, e, f = grid.georef.transform
        place = f"<GeoTransform>{', '.join(repr(value) for value in (c, a, b, f, d, e))}</GeoTransform>"
    crs = f"<SRS>{escape(grid.georef.crs_wkt)}</SRS>" if grid.georef.crs_wkt else ""
    bands = "".join(
        f'<VRTRasterBand dataType="Int16" band="{number}"><Description>{escape(name)}</Description><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">{escape(os.fspath(path.name))}</SourceFilename>'
        f'<SourceBand>{band}</SourceBand><SrcRect xOff="0" yOff="0" {size}/><DstRect xOff="0" yOff="0" {size}/>'
        "</SimpleSource></VRTRasterBand>\n"
        for number, ((path, band), name) in enumerate(zip(places, names, strict=True), start=1)
    )
    head = f'<VRTDataset rasterXSize="{grid.width}" rasterYSize="{grid.height}">{crs}{place}\n'
    return f"{head}{bands}</VRTDataset>\n"
