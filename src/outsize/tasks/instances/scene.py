"""Predicts the objects of one scene into files: layers for a GIS, COCO, ids, a picture."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outsize.card import Card
from outsize.data.formats import write_results
from outsize.data.object import Object
from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.outputs import taking
from outsize.infer.ready import Ready
from outsize.infer.stream import Waits
from outsize.job import ObjectsSection
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.raster.vectors import ObjectSummary, write_objects
from outsize.raster.writing import write_ids
from outsize.tasks.instances.finding import Finder, find_objects
from outsize.tasks.instances.picture import draw_objects
from outsize.tiles.grid import redundancy

LEAST_SCORE = 0.05  # of what is kept for average precision


@dataclass(frozen=True)
class ObjectProducts:
    """What a prediction of objects leaves behind, and where; `stem` is a path without its ending."""

    stem: Path
    section: ObjectsSection
    inside: AreaOfInterest | None = None
    consent: Consent = NONE_GIVEN

    @property
    def grows(self) -> bool:
        """It is of one scene alone."""
        return False

    @property
    def vectors(self) -> Path:
        """Layers for a GIS."""
        return self._named(f".{self.section.vectors}")

    @property
    def results(self) -> Path:
        """All objects with their masks, as COCO has them; what `evaluate` reads."""
        return self._named(".coco.json")

    @property
    def ids(self) -> Path:
        """Raster of object ids."""
        return self._named("_ids.tif")

    @property
    def picture(self) -> Path:
        """The scene with outlines."""
        return self._named("_objects.png")

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        wanted = ((self.section.ids, self.ids), (self.section.picture, self.picture))
        return self.vectors, self.results, *(path for is_wanted, path in wanted if is_wanted)

    @property
    def names(self) -> dict[str, str]:
        """What predict.json calls the files."""
        files = {"map": self.vectors, "objects": self.results}
        files |= {"ids": self.ids} if self.section.ids else {}
        files |= {"picture": self.picture} if self.section.picture else {}
        files |= {} if self.inside is None else {"aoi": self.inside.path}
        return {name: str(path) for name, path in files.items()}

    def _named(self, ending: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}{ending}")


def finder_of(ready: Ready, sure: float) -> Finder:
    """Return a model that is ready as a finder of objects, which are sure from a score of `sure` on."""
    card, least = ready.card, min(sure, LEAST_SCORE)
    return Finder(ready.model, card.bands, card.statistics, ready.tiling, ready.settings, least, sure)


def predict_objects(
    finder: Finder, card: Card, info: SceneInfo, products: ObjectProducts, reporter: Reporter
) -> dict[str, Any]:
    """Find the objects of one scene, write them, and return what was done, for predict.json."""
    with taking(products.paths, info.path, products.consent, partial(reporter.say, "lock")):
        return _predict_objects(finder, card, info, products, reporter)


def _predict_objects(
    finder: Finder, card: Card, info: SceneInfo, products: ObjectProducts, reporter: Reporter
) -> dict[str, Any]:
    tiles = finder.tiles(info)
    start_s, waits = time.perf_counter(), Waits()
    with (
        SceneReader(info) as reader,
        reporter.bar(f"predict {info.path.name}", len(tiles), "tile", activity="predict") as bar,
    ):
        objects = find_objects(finder, reader, tiles, inside=products.inside, bar=bar, waits=waits)
    sure, unsure = _apart(objects, finder.sure)
    tiles_s = time.perf_counter() - start_s
    layers = write_products(sure, unsure, card, info, products)
    counts = Counter(each.class_id for each in sure)
    return {
        "scene": str(info.path.resolve()),  # found again from any folder
        **products.names,
        "files": [path.name for path in products.paths],
        "height": info.height,
        "width": info.width,
        "num_tiles": len(tiles),
        "redundancy": round(redundancy(tiles, info.height, info.width), 4),
        "min_score": finder.sure,
        "num_objects": len(sure),
        "num_unsure": len(unsure),  # in the COCO file behind the others, for average precision wants them too
        "classes": {each.name: counts[number] for number, each in enumerate(card.classes)},
        f"area_{layers.area_unit}": round(layers.area, 3),
        "tiles_s": round(tiles_s, 3),
        "tiles_mpx_per_s": round(info.num_px / tiles_s / 1e6, 2),
        "waited_for_reads_s": round(waits.reads_s, 3),
        "waited_for_device_s": round(waits.device_s, 3),
        "polygons_s": round(time.perf_counter() - start_s - tiles_s, 3),
    }


def write_products(
    objects: Sequence[Object], unsure: Sequence[Object], card: Card, info: SceneInfo, products: ObjectProducts
) -> ObjectSummary:
    """Write all files that are wanted of one scene's objects; the unsure ones are in the COCO file only."""
    section, names = products.section, [each.name for each in card.classes]
    layers = write_objects(
        products.vectors,
        objects,
        info,
        class_names=names,
        shape=section.shape,
        simplify_px=section.simplify_px,
    )
    write_results(products.results, [*objects, *unsure], info, names)
    if section.ids:
        write_ids(products.ids, objects, info)
    if section.picture:
        colours = [each.colour for each in card.classes]
        draw_objects(products.picture, info, {f"{len(objects)} found": objects}, colours, bands=card.bands)
    return layers


def _apart(objects: Sequence[Object], sure: float) -> tuple[list[Object], list[Object]]:
    return [each for each in objects if each.score >= sure], [each for each in objects if each.score < sure]
