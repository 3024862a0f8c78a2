from outsize.raster.georef import GeoRef
from outsize.tiles.window import Window


def test_ground_of_a_rotated_grid():
    georef = GeoRef(None, (10.0, 0.5, 100.0, 0.25, -10.0, 200.0))
    assert georef.ground(row=2, col=3) == (10 * 3 + 0.5 * 2 + 100, 0.25 * 3 - 10 * 2 + 200)


def test_shifted_grid_keeps_every_pixel_where_it_is():
    georef = GeoRef("wkt", (10.0, 0.5, 100.0, 0.25, -10.0, 200.0))
    inner = georef.shifted(Window(row=7, col=4, height=2, width=2))
    assert inner.ground(0, 0) == georef.ground(7, 4)
    assert inner.ground(1, 1) == georef.ground(8, 5)
    assert inner.crs_wkt == "wkt"
