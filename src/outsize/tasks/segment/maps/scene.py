"""Predicts a whole scene: tiles to a working raster, then the map, its companions and the polygons."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from outsize.card import Card
from outsize.errors import OutputError
from outsize.files.ownership import NONE_GIVEN, Consent, is_marked, mark
from outsize.infer.outputs import taking
from outsize.infer.passes import work_of_scene
from outsize.infer.stream import NODATA, Settings
from outsize.plan.plan import Tiling
from outsize.progress import Reporter
from outsize.ranks import World, is_of_ranks
from outsize.raster import disk
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo
from outsize.raster.vectors import write_polygons
from outsize.raster.writing import Layer, TileStore, make_cog, write_style
from outsize.stopping import Stopped
from outsize.tasks.segment.maps.decoding import CONFIDENCE_SCALE, THRESHOLD, Wanted
from outsize.tasks.segment.maps.fill import layers_of, predict_tiles
from outsize.tasks.segment.maps.unanswered import unanswered_line
from outsize.units import format_bytes, format_count


@dataclass(frozen=True)
class Products:
    """What a prediction leaves behind, and where."""

    map_path: Path
    confidence: bool = False
    probabilities: bool = False
    polygons: Path | None = None
    min_area_m2: float = 0.0
    simplify_m: float = 0.0
    overviews: Literal["mode", "nearest"] = "mode"
    inside: AreaOfInterest | None = None  # nothing is predicted outside of it
    threshold: float = THRESHOLD  # of a network of one logit
    consent: Consent = NONE_GIVEN

    @property
    def grows(self) -> bool:
        """It is of one scene alone."""
        return False

    @property
    def style_path(self) -> Path:
        """Names and colours of the classes, for QGIS."""
        return self.map_path.with_suffix(".qml")

    @property
    def confidence_path(self) -> Path:
        """Raster of the largest probability."""
        return self.map_path.with_name(f"{self.map_path.stem}_confidence.tif")

    @property
    def probabilities_path(self) -> Path:
        """Raster of one probability per class."""
        return self.map_path.with_name(f"{self.map_path.stem}_probabilities.tif")

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, the map first."""
        wanted = ((self.confidence, self.confidence_path), (self.probabilities, self.probabilities_path))
        rasters = (self.map_path, self.style_path, *(path for is_wanted, path in wanted if is_wanted))
        return rasters if self.polygons is None else (*rasters, self.polygons)

    @property
    def names(self) -> dict[str, str]:
        """What predict.json calls the files."""
        files = {
            "map": self.map_path,
            "confidence": self.confidence_path if self.confidence else None,
            "polygons": self.polygons,
            "aoi": None if self.inside is None else self.inside.path,
        }
        return {name: str(path) for name, path in files.items() if path is not None}

    @property
    def work_folder(self) -> Path:
        """Where finished cores are kept until the map is made."""
        return self.map_path.with_name(f".{self.map_path.stem}.work")


def predict_scene(
    model: nn.Module,
    card: Card,
    info: SceneInfo,
    products: Products,
    *,
    tiling: Tiling,
    settings: Settings,
    weights_id: str,
    reporter: Reporter,
) -> dict[str, Any]:
    """Predict one scene and return what was done; an interrupted one is taken up again, if its weights have an id.

    Of several ranks the owner begins the store and finishes it, all fill it; what was done is known to the owner.
    """
    tell = partial(reporter.say, "lock")
    owns = settings.world.is_owner
    with taking(products.paths, info.path, products.consent, tell) if owns else nullcontext():
        return _predict(model, card, info, products, tiling, settings, weights_id, reporter)


def _predict(
    model: nn.Module,
    card: Card,
    info: SceneInfo,
    products: Products,
    tiling: Tiling,
    settings: Settings,
    weights_id: str,
    reporter: Reporter,
) -> dict[str, Any]:
    tiles, world = tiling.cover(info.height, info.width), settings.world
    wanted = _wanted(card, products)
    how: dict[str, Any] = {
        "wanted": wanted,
        "settings": settings,
        "reporter": reporter,
        "inside": products.inside,
    }
    start_s = time.perf_counter()
    key = _key(info, tiling, wanted, f"{weights_id or uuid.uuid4()} {settings.precision}", products.inside)
    store = _open_store(products.work_folder, info, layers_of(wanted), len(tiles), key, tiling, world)
    kept = _kept_where_of_use(store, len(tiles), is_known=bool(weights_id))
    with kept if world.is_owner else nullcontext():
        with store:
            waits = predict_tiles(model, card, tiles, store, **how)
        world.barrier()  # until all have closed it
        if not world.is_owner:
            return {}
        store.refresh()
        num_unanswered = store.num_unanswered
        if num_unanswered:
            text = unanswered_line(info.path.name, num_unanswered)
            reporter.say("warning", text, scene=str(info.path), unanswered_px=num_unanswered)
        tiles_s = time.perf_counter() - start_s
        reporter.say("write", f"writing {products.map_path}", path=str(products.map_path))
        with _staged(products) as staged, reporter.doing("write"):
            summary = _finish(store, info, card, staged, reporter)
    return {
        "scene": str(info.path.resolve()),  # found again from any folder
        **products.names,
        "files": [path.name for path in products.paths],
        "height": info.height,
        "width": info.width,
        "num_tiles": len(tiles),
        **({"unanswered_px": num_unanswered} if num_unanswered else {}),
        **work_of_scene(tiles, info, settings),
        "tiles_s": round(tiles_s, 3),
        "tiles_mpx_per_s": round(info.num_px / tiles_s / 1e6, 2),
        "waited_for_reads_s": round(waits.reads_s, 3),
        "waited_for_device_s": round(waits.device_s, 3),
        **summary,
    }


def _open_store(
    folder: Path,
    info: SceneInfo,
    layers: tuple[Layer, ...],
    num_tiles: int,
    key: str,
    tiling: Tiling,
    world: World,
) -> TileStore:
    """Begin a store, or take it up; of several ranks the owner does, and then the others join it."""
    block_px = _block_px(tiling.core_px)
    if world.is_owner:
        store = TileStore.open(folder, info, layers, num_tiles, key, block_px)
    key = world.broadcast(key)
    if not world.is_owner:
        store = TileStore.open(folder, info, layers, num_tiles, key, block_px, joins=True)
    return store


@contextmanager
def _kept_where_of_use(store: TileStore, num_tiles: int, *, is_known: bool) -> Iterator[None]:
    """Keep finished tiles, which may be worth hours, of a prediction that can go on: interrupted, or the disk was full.

    Else leave no half of a result, and no gigabytes out of sight. Those of weights that are not known another time are
    of no use.
    """
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            store.refresh()
        is_full = isinstance(error, OutputError) and store.num_done > 0
        is_left = isinstance(error, RuntimeError) and is_of_ranks(error)  # by another rank
        if not is_known or (isinstance(error, Exception) and not is_full and not is_left):
            store.discard()
        elif is_full:
            done, size = (
                f"{store.num_done} of {format_count(num_tiles, 'tile')}",
                format_bytes(store.num_bytes),
            )
            how = "run the same command again to go on from there, or remove that folder"
            raise OutputError(
                f"{error}; {done} are done and kept in {store.folder} ({size}): {how}"
            ) from error
        elif isinstance(error, Stopped):
            error.kept = f"{store.num_done:,} of {format_count(num_tiles, 'tile')} are kept"
        raise
    store.discard()


def _wanted(card: Card, products: Products) -> Wanted:
    # polygons carry their mean confidence, so the working copy has it even where the user wants no raster of it
    return Wanted(
        tuple(each.value for each in card.classes),
        confidence=products.confidence or products.polygons is not None,
        probabilities=products.probabilities,
        threshold=products.threshold,
    )


@contextmanager
def _staged(products: Products) -> Iterator[Products]:
    """Give names in a hidden folder beside the results; all files are moved from there into place, or none is."""
    folder = products.work_folder / "ready"
    staged = replace(products, map_path=folder / products.map_path.name)
    folders = {folder}
    if products.polygons is not None:
        # beside its own place, for a file can be renamed within one disk only
        beside = products.polygons.parent / products.work_folder.name / "ready"
        staged = replace(staged, polygons=beside / products.polygons.name)
        folders.add(beside)
    try:
        for each in folders:
            disk.make_folder(each)
            with disk.disk_errors(each):
                mark(each)
        yield staged
        for made, path in zip(staged.paths, products.paths, strict=True):
            with disk.disk_errors(path):
                made.replace(path)
    finally:
        for each in folders:
            if is_marked(each):
                shutil.rmtree(each, ignore_errors=True)
            with suppress(OSError):  # the working rasters are still in it
                each.parent.rmdir()


def _finish(
    store: TileStore, info: SceneInfo, card: Card, products: Products, reporter: Reporter
) -> dict[str, Any]:
    """Make the final files from the finished working rasters; each is made again if interrupted."""
    start_s = time.perf_counter()
    tags = {"scale": f"1/{CONFIDENCE_SCALE}", "classes": ", ".join(each.name for each in card.classes)}
    make_cog(
        store.path("classes"),
        products.map_path,
        resampling=products.overviews,
        colours={each.value: each.colour for each in card.classes},
        nodata=NODATA,
        band_names=("class",),
        tags={"classes": tags["classes"]},
    )
    write_style(products.style_path, card.classes)
    if products.confidence:
        _make_shares(store, "confidence", products.confidence_path, ("confidence",), tags)
    if products.probabilities:
        names = tuple(each.name for each in card.classes)
        _make_shares(store, "probabilities", products.probabilities_path, names, tags)
    cog_s = time.perf_counter() - start_s
    summary: dict[str, Any] = {"cog_s": round(cog_s, 3), "cog_mpx_per_s": round(info.num_px / cog_s / 1e6, 2)}
    if products.polygons is not None:
        start_s = time.perf_counter()
        with reporter.bar("polygons", info.num_px, "px") as bar:
            polygons = write_polygons(
                store.path("classes"),
                store.path("confidence"),
                products.polygons,
                class_names={each.value: each.name for each in card.classes},
                min_area_m2=products.min_area_m2,
                simplify_m=products.simplify_m,
                advance=bar.advance,
            )
        seconds = time.perf_counter() - start_s
        summary |= {
            "num_polygons": polygons.num_polygons,
            "polygons_s": round(seconds, 3),
            "polygons_mpx_per_s": round(info.num_px / seconds / 1e6, 2),
        }
    return summary


def _make_shares(
    store: TileStore, layer: str, path: Path, names: tuple[str, ...], tags: dict[str, str]
) -> None:
    make_cog(
        store.path(layer),
        path,
        resampling="average",
        colours=None,
        nodata=NODATA,
        band_names=names,
        tags=tags,
    )


def _block_px(core_px: int) -> int:
    """Return the largest usual block that divides the core, so that no two tiles share one."""
    return next((block for block in (512, 256, 128, 64, 32, 16) if core_px % block == 0), 256)


def _key(
    info: SceneInfo, tiling: Tiling, wanted: Wanted, weights_id: str, inside: AreaOfInterest | None
) -> str:
    """Name all that decides the pixels: a store with another key is not taken up again."""
    status = info.path.stat()
    parts = [
        str(info.path.resolve()),
        status.st_size,
        status.st_mtime_ns,
        repr(tiling),
        repr(wanted),
        weights_id,
        "" if inside is None else inside.key,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
