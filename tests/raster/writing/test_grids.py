"""Grids of numbers are read as they were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from pyproj import CRS

from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.labels import is_made_of
from outsize.raster.writing import write_grids


@pytest.mark.parametrize(
    "georef", [NO_PLACE, GeoRef(CRS.from_epsg(32632).to_wkt(), (10.0, 0.0, 5.0, 0.0, -10.0, 7.0))]
)
def test_bands_names_and_place(georef: GeoRef, tmp_path: Path) -> None:
    grids = np.random.default_rng(0).random((3, 300, 280)).astype(np.float32)
    path, names = tmp_path / "new" / "a.tif", ["one", "two", "three"]
    write_grids(path, georef, grids, names, key="k", tags={"start": "now"}, unit="mm/h", nodata=np.nan)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), grids)
        assert file.descriptions == ("one", "two", "three")
        assert (file.units[0], file.tags()["start"], bool(file.crs)) == ("mm/h", "now", georef != NO_PLACE)
    assert is_made_of(path, "k")
    assert not is_made_of(path, "other")
