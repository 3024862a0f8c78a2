"""Files of frames: which they are, what is in them, and whether they are in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from outsize.data.radar import hdf5
from outsize.data.radar.frames import Frame, untimed
from outsize.data.radar.geotiff import geotiff_frames
from outsize.data.radar.knmi import is_knmi, knmi_frames
from outsize.data.radar.netcdf import netcdf_frames
from outsize.data.radar.odim import is_odim, odim_frames
from outsize.data.radar.sequence import newest
from outsize.data.radar.store import newest_scene
from outsize.errors import DataError, OutsizeError, explain, listed
from outsize.job import FramesSection
from outsize.raster.georef import same_crs
from outsize.raster.reading import SceneInfo
from outsize.units import clock

ENDINGS = (".nc", ".nc4", ".h5", ".hdf5", ".hdf", ".tif", ".tiff")
_TIFF = (".tif", ".tiff")
_LEAST, _LOOKED_AT = 4, 12  # frames; files of a folder


def frame_files(folder: Path) -> list[Path]:
    """Return the files below a folder that are named as frames, sorted by name."""
    return [path for path in sorted(folder.rglob("*")) if _is_frame(path)]


def frames_in_order(paths: Sequence[Path], section: FramesSection) -> tuple[list[Frame], list[DataError]]:
    """Return the frames of all files, and what is wrong with those that have none; refuse disorder."""
    frames: list[Frame] = []
    bad: list[DataError] = []
    for path in paths:
        try:
            frames += frames_in(path, section)
        except DataError as error:
            bad.append(error)
    if frames:
        refuse_disorder(frames)
    return frames, bad


def newest_frames(paths: Sequence[Path], section: FramesSection, cache: Path) -> SceneInfo:
    """Describe the scene that a forecast starts from: the newest of these frames, or of those in folders."""
    files: list[Path] = []
    for path in paths:
        files += frame_files(path) if path.is_dir() else [path]
    frames = [frame for path in files for frame in frames_in(path, section)]
    if not frames:
        need, remedy = f"files of frames ({', '.join(ENDINGS)})", "check the path"
        found = listed([str(path) for path in paths], 3)
        raise DataError(explain("there is no frame to forecast from", found, need, remedy))
    refuse_disorder(frames)
    return newest_scene(newest(frames, section), section, cache)


def frames_below(folder: Path) -> tuple[int, float] | None:
    """Return how many files of frames a folder holds and the minutes between them; None where it holds others.

    GeoTIFFs are frames where each of them is named by a time and by nothing else that differs.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    files = [path for path in paths if _is_frame(path)]
    if not files or len(files) < len(paths) / 2:
        return None
    tiffs = [path for path in files if path.suffix.lower() in _TIFF]
    if tiffs and (len(tiffs) < _LEAST or len(set(map(untimed, files))) > 1):
        return None
    try:
        times_s = sorted(
            frame.time_s for path in files[:_LOOKED_AT] for frame in frames_in(path, FramesSection())
        )
    except OutsizeError:
        return None
    apart_s = [after - before for before, after in pairwise(times_s) if after > before]
    return (len(files), min(apart_s) / 60) if len(times_s) >= _LEAST and apart_s else None


def frames_in(path: Path, frames: FramesSection) -> list[Frame]:
    """Return the frames of a file, whatever its format is."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise DataError(explain(f"{path} cannot be read", found, "a file of frames", "check the path"))
    if hdf5.is_hdf5(path):
        with hdf5.opened(path) as file:
            read = odim_frames if is_odim(file) else knmi_frames if is_knmi(file) else None
        if read is not None:
            return read(path, frames.unit, frames.step_s)
        return netcdf_frames(path, frames.variable, frames.unit, frames.step_s)
    if path.suffix.lower() in _TIFF:
        return geotiff_frames(path, frames.unit, frames.step_s)
    with path.open("rb") as file:
        start = file.read(4)
    found = (
        "an empty file" if not start else "netCDF-3" if start[:3] == b"CDF" else f"it begins with {start!r}"
    )
    need = "HDF5 (netCDF-4 is that, too) or GeoTIFF"
    remedy = "convert it (nccopy -k nc4)" if found == "netCDF-3" else "copy it again from its source"
    raise DataError(explain(f"{path} is no file of frames", found, need, remedy))


def refuse_disorder(frames: Sequence[Frame]) -> None:
    """Refuse frames, in the order of their files, whose times do not rise, or that are not of one grid."""
    first = frames[0]
    for before, frame in pairwise(frames):
        if frame.time_s == before.time_s:
            need, remedy = "one frame for each time", "take one of them out"
            raise DataError(explain(f"{frame.path} is there twice", f"{before.name}, too", need, remedy))
        if frame.time_s < before.time_s:
            need = f"a time after {clock(before.time_s)}, that of {before.path.name}"
            remedy = "name files so that they sort by time, or correct the time inside"
            raise DataError(explain(f"{frame.path} is out of order", clock(frame.time_s), need, remedy))
    for frame in frames:
        if (frame.height, frame.width) != (first.height, first.width):
            need = f"{first.height} x {first.width}, as {first.path.name}"
            remedy = "bring all frames to one grid, or take it out"
            found = f"{frame.height} x {frame.width} px"
            raise DataError(explain(f"{frame.path} is of another size", found, need, remedy))
        if frame.georef.transform != first.georef.transform or not (
            frame.georef.crs_wkt == first.georef.crs_wkt
            or same_crs(frame.georef.crs_wkt, first.georef.crs_wkt)
        ):
            need, remedy = f"the grid of {first.path.name}", "bring all frames to one grid"
            raise DataError(explain(f"{frame.path} lies elsewhere", "another grid", need, remedy))


def _is_frame(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()
