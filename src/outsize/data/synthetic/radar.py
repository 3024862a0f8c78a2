"""Rain that is drawn: cells that grow, move with a wind that turns from place to place, and decay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.raster.georef import GeoRef
from outsize.raster.writing import write_grids
from outsize.units import clock

BEGAN = datetime(2024, 6, 1, 12, 0, tzinfo=UTC)
_PX_M = 1000.0
_LIFE = (12, 40)  # frames from nothing to nothing
_PEAK = (2.0, 40.0)  # mm/h
_CELL = (0.02, 0.06)  # of the side of the picture


def draw_rain(
    num_frames: int, side_px: int, *, seed: int = 0, speed_px: float = 2.0, num_cells: int = 30
) -> NDArray[np.float32]:
    """Draw frames of rain (frame, row, column) in mm/h; `speed_px` is how far cells move from frame to frame."""
    rng = np.random.default_rng(seed)
    rows, cols = np.mgrid[:side_px, :side_px].astype(np.float32)
    frames = np.zeros((num_frames, side_px, side_px), np.float32)
    heading = rng.uniform(0, 2 * np.pi)
    for _ in range(num_cells):
        born, life = int(rng.integers(-_LIFE[0], num_frames)), int(rng.integers(*_LIFE))
        peak = float(np.exp(rng.uniform(*np.log(_PEAK))))
        radii = rng.uniform(*_CELL, 2) * side_px
        row, col = rng.uniform(-0.2, 1.2, 2) * side_px
        turn, tilt = rng.uniform(-0.02, 0.02), rng.uniform(0, np.pi)
        for age in range(life):
            row += speed_px * np.sin(heading + turn * age)
            col += speed_px * np.cos(heading + turn * age)
            if 0 <= born + age < num_frames:
                strength = peak * np.sin(np.pi * (age + 1) / (life + 1)) ** 2
                down, right = rows - row, cols - col
                along = (right * np.cos(tilt) + down * np.sin(tilt)) / radii[0]
                across = (down * np.cos(tilt) - right * np.sin(tilt)) / radii[1]
                frames[born + age] += strength * np.exp(-0.5 * (along**2 + across**2))
    return np.where(frames < 0.05, np.float32(0), frames)


def write_rain(
    folder: Path,
    num_frames: int = 60,
    side_px: int = 128,
    *,
    seed: int = 0,
    step_minutes: int = 10,
    speed_px: float = 2.0,
    num_cells: int = 30,
) -> list[Path]:
    """Write drawn frames as GeoTIFFs named by their times, all unknown in one corner; returns their paths."""
    frames = draw_rain(num_frames, side_px, seed=seed, speed_px=speed_px, num_cells=num_cells)
    frames[:, : side_px // 8, : side_px // 8] = np.nan
    georef = GeoRef(_crs(), (_PX_M, 0.0, 0.0, 0.0, -_PX_M, side_px * _PX_M))
    paths = []
    for number, frame in enumerate(frames):
        time = BEGAN + number * timedelta(minutes=step_minutes)
        path = folder / f"rain_{time:%Y%m%d_%H%M}.tif"
        write_grids(path, georef, frame[None], [clock(int(time.timestamp()))], unit="mm/h", nodata=np.nan)
        paths.append(path)
    return paths


def _crs() -> str:
    from pyproj import CRS

    return str(CRS.from_epsg(32632).to_wkt())
