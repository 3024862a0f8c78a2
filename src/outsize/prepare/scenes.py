"""One raw scene made ready: checked to the last pixel, reprojected if asked, tiled with overviews, its labels burnt.

raw.tif   --> read by windows: mask, statistics (pixels) --> warped, if asked --> NAME.tif         COG
polygons  --> burnt on the grid of NAME.tif  -.
or raster --> as it is, or warped             '-> values counted, unknown ones refused --> NAME_labels.tif  COG
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain, listed
from outsize.prepare.piece import Facts, Piece
from outsize.prepare.pixels import copy_scene, warp_scene, windows_of
from outsize.raster.georef import same_crs
from outsize.raster.labels import lie_on_grid, warp_labels, write_labels
from outsize.raster.polygons import PolygonLabels, burn_labels
from outsize.raster.reading import SceneInfo, SceneReader, describe, stack_bands
from outsize.raster.writing import copy_as_cog, make_cog
from outsize.tiles.window import Window

Colour = tuple[int, int, int]
_THREADS = "1"  # many scenes are made side by side


@dataclass(frozen=True)
class RawScene:
    """The files of a scene as they came."""

    name: str  # of what it becomes, without an ending; folders may be in it
    path: Path
    bands: Mapping[str, Path] | None = None  # of a scene of one file for each band
    labels: Path | PolygonLabels | None = None
    allow_references: bool = False

    @property
    def sources(self) -> tuple[Path, ...]:
        """All its files."""
        images = tuple(self.bands.values()) if self.bands else (self.path,)
        labels = self.labels.path if isinstance(self.labels, PolygonLabels) else self.labels
        return images if labels is None else (*images, labels)


@dataclass(frozen=True)
class SceneSettings:
    """What all scenes become."""

    colours: Mapping[int, Colour]  # of each class, by its value
    ignored: tuple[int, ...] = (255,)  # values of no class; the first one is written
    crs: str | None = None  # to reproject to
    resampling: str = "bilinear"


def scene_piece(raw: RawScene, settings: SceneSettings, version: str) -> Piece:
    """Return the piece of work that a raw scene is."""
    image, labels = _outputs(raw)
    meaning = replace(raw.labels, path=Path()) if isinstance(raw.labels, PolygonLabels) else ""
    text = f"outsize {version}, {settings}, {meaning}, {list(raw.bands or ())}, {raw.allow_references}"
    outputs = (image,) if raw.labels is None else (labels, image)
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return Piece(raw.name, raw.sources, outputs, key, partial(prepare_scene, raw, settings))


def prepare_scene(raw: RawScene, settings: SceneSettings, folder: Path) -> Facts:
    """Write a scene and its labels below a folder; return what is known of each. Raises DataError, OutputError."""
    image, labels = _outputs(raw)
    work = folder / f"{raw.name}.work"
    try:
        facts = {image: _prepare_image(raw, settings, work, folder / image)}
        if raw.labels is not None:
            facts[labels] = _prepare_labels(raw, describe(folder / image), settings, work, folder / labels)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return facts


def _outputs(raw: RawScene) -> tuple[str, str]:
    return f"{raw.name}.tif", f"{raw.name}_labels.tif"


def _prepare_image(raw: RawScene, settings: SceneSettings, work: Path, target: Path) -> dict[str, Any]:
    if raw.bands:
        info = stack_bands(raw.path, raw.bands, allow_references=raw.allow_references)
    else:
        info = describe(raw.path, allow_references=raw.allow_references)
    plain = work / "plain.tif"
    figures = copy_scene(info, plain)
    if settings.crs is not None and not _is_in(info, settings.crs):
        warped = work / "warped.tif"
        figures = warp_scene(plain, settings.crs, warped, resampling=settings.resampling)
        plain.unlink()
        plain = warped
    copy_as_cog(os.fspath(plain), target, resampling="average", is_measured=True, num_threads=_THREADS)
    return {**figures, "bands": list(info.band_names)}


def _is_in(info: SceneInfo, crs: str) -> bool:
    from rasterio.crs import CRS

    if info.georef.crs_wkt is None:
        need, remedy = "a coordinate system", "state it (gdal_edit.py -a_srs), or leave prepare.crs out"
        raise DataError(explain(f"{info.path} cannot be reprojected", "none in the file", need, remedy))
    return same_crs(info.georef.crs_wkt, CRS.from_user_input(crs).to_wkt())


def _prepare_labels(
    raw: RawScene, scene: SceneInfo, settings: SceneSettings, work: Path, target: Path
) -> dict[str, Any]:
    """Bring labels onto the grid of a prepared scene, and count the pixels of each value."""
    values, ignored = work / "values.tif", settings.ignored[0]
    if isinstance(raw.labels, PolygonLabels):
        burn_labels(raw.labels, scene, values, ignore_value=ignored, key="")
    else:
        assert raw.labels is not None
        labels = describe(raw.labels, allow_references=raw.allow_references)
        if labels.num_bands != 1:
            remedy = "save class numbers as one band instead of colours"
            found, need = f"{labels.num_bands} bands", "one band"
            raise DataError(explain(f"labels {labels.path} are colours", found, need, remedy))
        if lie_on_grid(labels, scene):
            _copy_labels(labels, scene, values, ignored)
        else:
            warp_labels(labels, scene, values, ignore_value=ignored, key="")
    counts = _count(values)
    known = {*settings.colours, *settings.ignored}
    unknown = [value for value in counts if value not in known]
    if unknown:
        need = f"one of {listed(sorted(settings.colours), 20)}"
        remedy = "add it to data.classes or set data.ignore_value"
        what = f"labels of {raw.path} have values in no class"
        raise DataError(explain(what, listed(unknown, 20), need, remedy))
    make_cog(values, target, resampling="mode", colours=settings.colours, num_threads=_THREADS)
    return {"classes": {str(value): num for value, num in counts.items()}}


def _copy_labels(labels: SceneInfo, scene: SceneInfo, target: Path, ignored: int) -> None:
    with SceneReader(labels) as reader:

        def make(window: Window) -> NDArray[np.uint8]:
            raster = reader.read(window)
            known = raster.pixels[0][raster.valid]
            if known.size and (known.min() < 0 or known.max() > 255):
                found, remedy = f"{known.min()} to {known.max()}", "renumber the classes"
                what = f"label values out of range in {labels.path}"
                raise DataError(explain(what, found, "0 to 255", remedy))
            return np.where(raster.valid, raster.pixels[0], ignored).astype(np.uint8)

        write_labels(target, scene, ignored, "", make)


def _count(values: Path) -> dict[int, int]:
    from outsize.raster.gdal import open_raster

    counts = np.zeros(256, np.int64)
    with open_raster(os.fspath(values), ("GTiff",)) as opened:
        for window in windows_of(opened.height, opened.width):
            rows, cols = window.slices
            read = opened.read(1, window=((rows.start, rows.stop), (cols.start, cols.stop)))
            counts += np.bincount(read.ravel(), minlength=256)
    return {value: int(num) for value, num in enumerate(counts) if num}
