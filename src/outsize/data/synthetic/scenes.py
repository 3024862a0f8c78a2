"""Writes synthetic satellite scenes of any size, with labels as raster and as polygons."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outsize.data.synthetic.spectra import BLOCK_PX, FEATURES_LOCK, draw_block
from outsize.errors import DataError, OutputError, explain
from outsize.raster import disk

if TYPE_CHECKING:
    from rasterio.transform import Affine

BANDS = ("blue", "green", "red", "nir")
LABEL_NODATA = 255
PIXEL_NODATA = 0
LAYER = "labels"
TILE_PX = 256
_CACHE_BYTES = (
    64 * 2**20
)  # for GDAL, whose own choice is a share of the machine's memory; rasterio wants bytes


@dataclass(frozen=True)
class DrawnClass:
    """One class of the labels: name, value in the raster, colour as red, green, blue."""

    name: str
    value: int
    colour: tuple[int, int, int]


CLASSES = (
    DrawnClass("field", 0, (222, 203, 110)),
    DrawnClass("forest", 1, (38, 110, 56)),
    DrawnClass("water", 2, (52, 116, 194)),
    DrawnClass("road", 3, (92, 92, 98)),
    DrawnClass("building", 4, (204, 62, 52)),
    DrawnClass("bare_soil", 5, (156, 114, 76)),
)


class RowBar(Protocol):
    """What `draw_scene` tells its progress to."""

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more rows as drawn."""


def draw_scene(  # noqa: PLR0913 (each says what the files are like, and has a default)
    folder: Path,
    name: str,
    height: int,
    width: int,
    seed: int,
    *,
    resolution_m: float = 0.5,
    crs: str = "EPSG:32633",
    origin: tuple[float, float] = (500000.0, 5500000.0),
    vectors: bool = True,
    compress: str | None = "deflate",
    num_workers: int = 1,
    bar: RowBar | None = None,
) -> Path:
    """Draw NAME.tif, NAME_labels.tif and NAME_labels.gpkg; the same arguments give the same scene."""
    import rasterio
    from rasterio.transform import from_origin

    _check(folder, name, height, width, seed)
    endings = [".tif", "_labels.tif", "_labels.gpkg"][: 3 if vectors else 2]
    place = from_origin(*origin, resolution_m, resolution_m)
    grid = {"height": height, "width": width, "crs": crs, "transform": place, "compress": compress}
    # Drawn under other names and renamed at the end, so that a scene that has its name is whole.
    with rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES), ExitStack() as whole:
        parts = [whole.enter_context(disk.replacing(folder / f"{name}{ending}")) for ending in endings]
        with ExitStack() as files:
            image = files.enter_context(_create(parts[0], 4, "uint16", PIXEL_NODATA, grid, num_workers))
            labels = files.enter_context(_create(parts[1], 1, "uint8", LABEL_NODATA, grid, num_workers))
            image.descriptions = BANDS
            labels.descriptions = ("class",)
            labels.write_colormap(1, {spec.value: spec.colour for spec in CLASSES})
            for top, row in _block_rows(height, width, seed, num_workers):
                classes = _write_row(image, labels, top, row)
                if vectors:
                    _append_polygons(
                        parts[2], classes, place @ place.translation(0, top), crs, is_first=top == 0
                    )
                if bar is not None:
                    bar.advance(len(classes))
    return folder / f"{name}.tif"


def _check(folder: Path, name: str, height: int, width: int, seed: int) -> None:
    if height < 1 or width < 1:
        remedy = "ask for at least one pixel"
        raise DataError(
            explain(f"{name} has no pixels", f"{height} x {width}", "height and width from 1", remedy)
        )
    if seed < 0:
        raise DataError(explain(f"seed of {name} cannot be used", seed, "0 or more", "choose another seed"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem, remedy = f"folder {folder} cannot be made", "choose another folder"
        raise OutputError(explain(problem, error.strerror, "a folder to write to", remedy)) from error
    if not os.access(folder, os.W_OK):
        remedy = "choose another folder or change its rights"
        raise OutputError(
            explain(f"{name} cannot be drawn", f"read-only {folder}", "a folder to write to", remedy)
        )


def _create(
    path: Path, num_bands: int, dtype: str, nodata: int, grid: dict[str, Any], num_threads: int
) -> Any:
    import rasterio

    tiles: dict[str, Any] = {"tiled": True, "blockxsize": TILE_PX, "blockysize": TILE_PX}
    if grid["compress"] == "deflate":
        tiles["zlevel"] = 1  # noise does not get smaller by trying harder
    if grid["compress"] is not None:
        tiles["num_threads"] = num_threads
    kind = {"driver": "GTiff", "count": num_bands, "dtype": dtype, "nodata": nodata, "bigtiff": "IF_SAFER"}
    return rasterio.open(path, "w", **kind, **tiles, **grid)


# --- blocks ---------------------------------------------------------------------------------------

Block = tuple[NDArray[np.uint16], NDArray[np.uint8]]  # pixels (band, row, col), labels (row, col)


def _block_rows(
    height: int, width: int, seed: int, num_workers: int
) -> Iterator[tuple[int, Iterator[Block]]]:
    """Give the blocks of each row of blocks, left to right, while the next ones are drawn."""
    spots = [(i, j) for i in range(-(-height // BLOCK_PX)) for j in range(-(-width // BLOCK_PX))]
    num_across = -(-width // BLOCK_PX)

    def draw(spot: tuple[int, int]) -> Block:
        return _cut(*draw_block(seed, *spot), *spot, height, width)

    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        blocks = _ahead(pool, draw, spots, 2 * num_workers)
        for top in range(0, height, BLOCK_PX):
            yield top, islice(blocks, num_across)


def _ahead(
    pool: ThreadPoolExecutor,
    draw: Callable[[tuple[int, int]], Block],
    spots: list[tuple[int, int]],
    num_ahead: int,
) -> Iterator[Block]:
    # Results in order, with only `num_ahead` of them in memory: `pool.map` would draw the whole scene.
    waiting: deque[Future[Block]] = deque()
    for spot in spots:
        waiting.append(pool.submit(draw, spot))
        if len(waiting) > num_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _cut(
    pixels: NDArray[np.uint16], labels: NDArray[np.uint8], i: int, j: int, height: int, width: int
) -> Block:
    """Cut a block to the scene, and clear the wedge at the upper right that the satellite did not see."""
    rows = np.arange(i * BLOCK_PX, min((i + 1) * BLOCK_PX, height))
    cols = np.arange(j * BLOCK_PX, min((j + 1) * BLOCK_PX, width))
    pixels, labels = pixels[:, : len(rows), : len(cols)], labels[: len(rows), : len(cols)]
    seen_px = width * (1 - 0.16 * (1 - rows / (0.4 * height)).clip(min=0))
    if cols[-1] >= seen_px.min():
        unseen = cols[None, :] >= seen_px[:, None]
        pixels[:, unseen] = PIXEL_NODATA
        labels[unseen] = LABEL_NODATA
    return pixels, labels


def _write_row(image: Any, labels: Any, top: int, row: Iterator[Block]) -> NDArray[np.uint8]:
    from rasterio.windows import Window

    done = []
    left = 0
    for pixels, classes in row:
        window = Window(left, top, classes.shape[1], classes.shape[0])
        image.write(pixels, window=window)
        labels.write(classes, 1, window=window)
        done.append(classes)
        left += classes.shape[1]
    return np.concatenate(done, axis=1)


# --- polygons -------------------------------------------------------------------------------------


def _append_polygons(
    path: Path, classes: NDArray[np.uint8], place: Affine, crs: str, *, is_first: bool
) -> None:
    """Append the outlines of one row of blocks; an area that goes on in the next row is two polygons."""
    import pyogrio.raw
    import shapely
    from rasterio.features import shapes

    with FEATURES_LOCK:
        found = list(shapes(classes, mask=classes != LABEL_NODATA, transform=place))
    outlines = [
        shapely.Polygon(outline["coordinates"][0], outline["coordinates"][1:]) for outline, _ in found
    ]
    values = np.array([int(value) for _, value in found], dtype=np.int32)
    names = np.array([CLASSES[value].name for value in values], dtype=object)
    pyogrio.raw.write(
        path,
        geometry=shapely.to_wkb(np.array(outlines, dtype=object)),
        field_data=[names, values],
        fields=["class", "value"],
        layer=LAYER,
        driver="GPKG",
        geometry_type="Polygon",
        crs=crs,
        append=not is_first,
    )
