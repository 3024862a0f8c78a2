"""Raw frames of radar made ready: rain in mm/h at a fixed step, on one grid, what is not known told apart from no rain.

raw    o     o      o       o  (gap)            o     o        whenever a radar had finished
step   |    |    |    |    |    |    |    |    |    |
made   o    x    x    x    x    .    .    .    o    x          o taken, x between two, . none: the format counts it
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outsize.data.radar import frame_files, frames_in_order
from outsize.errors import DataError, explain, one_line
from outsize.files.ownership import MADE_BY
from outsize.job import FramesSection, PrepareSection
from outsize.prepare.piece import Facts, Piece
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.units import clock

_MM_H = 0.01  # a count of what is written
_UNKNOWN = -1
_SLACK = 0.1  # of a step, by which a frame may be early or late and is taken as it is
_WET_MM_H = 0.1


class RawFrame(Protocol):
    """A field of rain as it was read: where, when, on which grid; `read` gives mm/h, NaN where unknown."""

    @property
    def path(self) -> Path: ...  # noqa: D102 (each is what its name says)

    @property
    def number(self) -> int: ...  # noqa: D102

    @property
    def time_s(self) -> int: ...  # noqa: D102

    @property
    def georef(self) -> GeoRef: ...  # noqa: D102

    @property
    def read(self) -> Callable[[], NDArray[np.float32]]: ...  # noqa: D102


Weighted = tuple[tuple[RawFrame, float], ...]


@dataclass(frozen=True)
class FrameSettings:
    """What all frames become."""

    most_mm_h: float
    crs: str | None
    resolution: float | None
    resampling: str


def frame_pieces(section: PrepareSection, frames: FramesSection, folder: Path, version: str) -> list[Piece]:
    """Return a piece for each step that frames are there for, and one for each file that has none to tell why."""
    read = frames.model_copy(update={"variable": section.variable, "unit": section.unit})
    paths = frame_files(folder / section.frames)
    if not paths:
        need, remedy = "files of frames: netCDF-4, HDF5, GeoTIFF", "correct prepare.frames"
        raise DataError(explain(f"no frame in {folder / section.frames}", "nothing", need, remedy))
    found, bad = frames_in_order(paths, read)
    settings = FrameSettings(section.max_mm_h, section.crs, section.resolution, section.resampling)
    most_apart_s = 60 * (section.max_gap_minutes or 2 * frames.step_minutes)
    by_step = at_steps(found, frames.step_s, most_apart_s)
    return [
        *(_piece(time_s, weighted, settings, f"{version} {read}") for time_s, weighted in by_step.items()),
        *(
            Piece(path.name, (path,), (), "", partial(_refuse, str(error)))
            for path, error in bad_files(paths, bad)
        ),
    ]


def bad_files(paths: Sequence[Path], bad: Sequence[DataError]) -> list[tuple[Path, DataError]]:
    """Return the file that each error is about."""
    return [(next((path for path in paths if str(path) in str(error)), paths[0]), error) for error in bad]


def at_steps(frames: Sequence[RawFrame], step_s: int, most_apart_s: float) -> dict[int, Weighted]:
    """Return of which frames, with which weights, the field of each step is made; steps in a gap are left out."""
    if not frames:
        return {}
    phases = {frame.time_s % step_s for frame in frames}
    phase_s = phases.pop() if len(phases) == 1 else 0
    times_s = [frame.time_s for frame in frames]
    first = -((phase_s - times_s[0] + round(_SLACK * step_s)) // step_s)
    found: dict[int, Weighted] = {}
    for time_s in range(phase_s + first * step_s, times_s[-1] + round(_SLACK * step_s) + 1, step_s):
        after = bisect_left(times_s, time_s)
        beside = [frames[number] for number in (after - 1, after) if 0 <= number < len(frames)]
        near = min(beside, key=lambda frame: abs(frame.time_s - time_s))
        if abs(near.time_s - time_s) <= _SLACK * step_s:
            found[time_s] = ((near, 1.0),)
        elif len(beside) == 2 and beside[1].time_s - beside[0].time_s <= most_apart_s:
            share = (time_s - beside[0].time_s) / (beside[1].time_s - beside[0].time_s)
            found[time_s] = ((beside[0], 1 - share), (beside[1], share))
    return found


def _piece(time_s: int, weighted: Weighted, settings: FrameSettings, told: str) -> Piece:
    name = _name(time_s)
    weights = [(frame.number, round(weight, 6)) for frame, weight in weighted]
    key = hashlib.sha256(f"{told} {settings} {weights}".encode()).hexdigest()[:32]
    sources = tuple(dict.fromkeys(frame.path for frame, _ in weighted))
    return Piece(name, sources, (f"{name}.tif",), key, partial(prepare_frame, time_s, weighted, settings))


def _name(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%dT%H%MZ")


def _refuse(why: str, _: Path) -> Facts:
    raise DataError(why)


def prepare_frame(time_s: int, weighted: Weighted, settings: FrameSettings, folder: Path) -> Facts:
    """Write the field of one step below a folder; return what is known of it. Raises DataError, OutputError."""
    parts = [np.float32(weight) * _sound(frame.read(), settings.most_mm_h) for frame, weight in weighted]
    rain: NDArray[np.float32] = np.stack(parts).sum(axis=0, dtype=np.float32)
    first = weighted[0][0]
    rain, georef = _on_grid(rain, first.georef, settings)
    target = folder / f"{_name(time_s)}.tif"
    _write(target, rain, georef, clock(time_s))
    known = rain[np.isfinite(rain)]
    facts: dict[str, Any] = {
        "time": clock(time_s),
        "pixels": rain.size,
        "known": known.size,
        "frames": len(weighted),
    }
    if known.size:
        facts |= {"mean_mm_h": float(known.mean(dtype=np.float64)), "max_mm_h": float(known.max())}
        facts["wet"] = int((known >= _WET_MM_H).sum())
    return {target.name: facts}


def _sound(rain: NDArray[np.float32], most_mm_h: float) -> NDArray[np.float32]:
    """Leave what can be rain; all else is unknown."""
    with np.errstate(invalid="ignore"):
        can_be = (rain >= 0) & (rain <= most_mm_h)  # NaN is neither
    return np.where(can_be, rain, np.float32(np.nan)).astype(np.float32)


def _on_grid(
    rain: NDArray[np.float32], georef: GeoRef, settings: FrameSettings
) -> tuple[NDArray[np.float32], GeoRef]:
    """Bring a field to the grid that is asked for; what comes from nowhere is unknown."""
    if settings.crs is None and settings.resolution is None:
        return rain, georef
    from rasterio import Affine
    from rasterio.crs import CRS
    from rasterio.enums import Resampling
    from rasterio.errors import CRSError, RasterioError
    from rasterio.transform import array_bounds
    from rasterio.warp import calculate_default_transform, reproject

    if georef.crs_wkt is None:
        need, remedy = "a coordinate system", "leave prepare.crs and prepare.resolution out"
        raise DataError(explain("frames cannot be brought to a grid", "none in the files", need, remedy))
    try:
        source, place = CRS.from_wkt(georef.crs_wkt), Affine(*georef.transform)
        crs = source if settings.crs is None else CRS.from_user_input(settings.crs)
        bounds = array_bounds(*rain.shape, place)
        transform, width, height = calculate_default_transform(
            source, crs, rain.shape[1], rain.shape[0], *bounds, resolution=settings.resolution
        )
        out = np.full((height, width), np.nan, np.float32)
        ways = {"src_nodata": np.nan, "dst_nodata": np.nan, "resampling": Resampling[settings.resampling]}
        reproject(
            rain, out, src_transform=place, src_crs=source, dst_transform=transform, dst_crs=crs, **ways
        )
    except (RasterioError, CRSError) as error:
        need, remedy = "a place that this system reaches", "check prepare.crs"
        raise DataError(
            explain(f"cannot reproject to {settings.crs}", one_line(error), need, remedy)
        ) from error
    return out, GeoRef(crs.to_wkt(), tuple(transform)[:6])


def _write(target: Path, rain: NDArray[np.float32], georef: GeoRef, when: str) -> None:
    """Write a field as counts of a hundredth of a millimetre in an hour."""
    import rasterio
    from rasterio.errors import RasterioError

    is_known = np.isfinite(rain)
    counts = np.where(is_known, np.rint(np.where(is_known, rain, 0) / _MM_H), _UNKNOWN).astype(np.int16)
    height, width = rain.shape
    profile = {"driver": "GTiff", "dtype": "int16", "count": 1, "height": height, "width": width}
    profile |= {"nodata": _UNKNOWN, "compress": "deflate", "predictor": 2}
    if georef != NO_PLACE:
        profile["transform"] = rasterio.Affine(*georef.transform)
    if georef.crs_wkt is not None:
        profile["crs"] = georef.crs_wkt
    disk.make_folder(target.parent)
    with disk.replacing(target) as temporary:
        try:
            with rasterio.open(temporary, "w", **profile) as out:
                out.scales, out.units = [_MM_H], ["mm/h"]
                out.update_tags(TIFFTAG_SOFTWARE=MADE_BY, time=when)
                out.write(counts, 1)
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error
