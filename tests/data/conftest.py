"""A small raster on disk from an array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

WriteRaster = Callable[..., Path]


@pytest.fixture
def write_raster(tmp_path: Path) -> WriteRaster:
    """Return the function that writes an array (band, row, column) or (row, column) as NAME in a new folder."""

    def write(name: str, pixels: NDArray[np.generic], names: tuple[str, ...] = (), **options: Any) -> Path:
        bands = pixels if pixels.ndim == 3 else pixels[None]
        shape = {"count": bands.shape[0], "height": bands.shape[1], "width": bands.shape[2]}
        place = {"crs": "EPSG:32632", "transform": rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)}
        path = tmp_path / name
        with rasterio.open(path, "w", driver="GTiff", dtype=bands.dtype, **shape, **place, **options) as file:
            file.write(bands)
            if names:
                file.descriptions = names
        return path

    return write
