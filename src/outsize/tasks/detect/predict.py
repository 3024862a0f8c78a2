"""Predicts the boxes of the scenes of a run, or of one by itself, into files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outsize.files.ownership import NONE_GIVEN, Consent
from outsize.infer.ledger import add_to_ledger
from outsize.infer.outputs import taking
from outsize.infer.ready import Ready, warn_resolution
from outsize.infer.stream import Waits
from outsize.job import BoxesSection, PredictSection
from outsize.measure.usage import watching, write_usage
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneInfo
from outsize.tasks.detect.files import BoxProducts, as_on_disk, write_products
from outsize.tasks.detect.finding import BoxFinder, find_boxes
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.detect.truth import are_counted
from outsize.units import format_pixels, format_seconds

_MANY = 8  # scenes, of which no line each is said


class _Clock:
    """What has passed since the last scene; where scenes share batches, each has what passed before it was done."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.start()

    def start(self) -> None:
        self._begin_s, self._reads_s, self._device_s = (
            time.perf_counter(),
            self._waits.reads_s,
            self._waits.device_s,
        )

    def since(self) -> dict[str, float]:
        return {
            "tiles_s": round(time.perf_counter() - self._begin_s, 3),
            "waited_for_reads_s": round(self._waits.reads_s - self._reads_s, 3),
            "waited_for_device_s": round(self._waits.device_s - self._device_s, 3),
        }


def products_for(
    path: Path,
    section: PredictSection,
    info: SceneInfo,
    *,
    inside: AreaOfInterest | None = None,
    consent: Consent = NONE_GIVEN,
) -> BoxProducts:
    """Return what a prediction of a scene leaves; `path` is without ending."""
    return BoxProducts(path, section.boxes, info.georef.crs_wkt is not None, inside, consent)


def finder_of(ready: Ready, section: BoxesSection) -> BoxFinder:
    """Return a model that is ready as a finder of boxes; how unsure they may be, it knows itself."""
    card = ready.card
    return BoxFinder(
        ready.model, card.bands, card.statistics, ready.tiling, ready.settings, flips=section.flip
    )


def predict_scenes(
    run_path: Path,
    ready: Ready,
    scenes: Sequence[tuple[SceneInfo, BoxProducts]],
    section: PredictSection,
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Predict scenes, those of one form together; returns what predict.json lists."""
    for info, _ in scenes:
        warn_resolution(ready, info, reporter)
    finder, waits = finder_of(ready, section.boxes), Waits()
    results: dict[int, dict[str, Any]] = {}
    num_tiles = sum(len(finder.tiles(info)) for info, _ in scenes)
    with watching(ready.settings.device) as usage, reporter.bar("predict", num_tiles, "tile") as bar:
        looked = [(info, ()) for info, _ in scenes]
        before = _Clock(waits)
        for number, found in find_boxes(finder, looked, advance=bar.advance, waits=waits):
            info, products = scenes[number]
            about = {"num_tiles": len(finder.tiles(info)), **before.since()}
            results[number] = {**_leave(found, info, products, ready, reporter), **about}
            facts = {"run": str(run_path), "plan": ready.plan.as_dict()}
            add_to_ledger(products.paths[0].parent, results[number], facts)
            if len(scenes) <= _MANY:
                _say(results[number], reporter)
            before.start()
        summary = usage.summary(len(scenes), images_at_once=ready.settings.batch)
    write_usage(run_path, "predict", summary)
    total = sum(each["num_boxes"] for each in results.values())
    text = f"{len(scenes)} scenes, {total:,} boxes, {summary['s_per_image']:.3g} s per image"
    reporter.say("usage", text, **summary, waited_for_device_s=round(waits.device_s, 3))
    return [results[number] for number in range(len(scenes))]


def predict_one(
    ready: Ready, info: SceneInfo, results: Sequence[Path], section: PredictSection, consent: Consent
) -> dict[str, Any]:
    """Predict the boxes of a scene into one COCO file, and return what was done."""
    wanted = section.boxes.model_copy(update={"vectors": "none", "picture": False, "kitti": False})
    products = BoxProducts(results[0].with_suffix(""), wanted, has_place=False, consent=consent)
    ((_, found),) = find_boxes(finder_of(ready, wanted), [(info, ())])
    return {**_leave(found, info, products, ready, Reporter("quiet")), "exact": ready.plan.exact}


def _leave(
    found: FoundBoxes, info: SceneInfo, products: BoxProducts, ready: Ready, reporter: Reporter
) -> dict[str, Any]:
    """Write the files of one scene, and return what was done, for predict.json."""
    card, start_s = ready.card, time.perf_counter()
    found = found.take(are_counted(found.sides, (), products.inside, info.shrink))
    info = as_on_disk(info)
    classes = [(each.name, each.colour) for each in card.classes]
    with ExitStack() as held:
        held.enter_context(taking(products.paths, info.path, products.consent, partial(reporter.say, "lock")))
        write_products(found, info, products, classes, card.bands)
    sure = found.scores >= products.section.min_score
    counts = Counter(found.class_ids[sure].tolist())
    aoi = {} if products.inside is None else {"aoi": str(products.inside.path)}
    return {
        "scene": str(info.path.resolve()),  # found again from any folder
        **{name: str(path) for name, path in products.named.items()},
        **aoi,
        "files": [path.name for path in products.paths],
        "height": info.height,
        "width": info.width,
        "min_score": products.section.min_score,
        "num_boxes": int(np.count_nonzero(sure)),
        "num_unsure": int(np.count_nonzero(~sure)),  # in the file behind the others, for scores want them too
        "classes": {each.name: counts[number] for number, each in enumerate(card.classes)},
        "polygons_s": round(time.perf_counter() - start_s, 4),
    }


def _say(result: dict[str, Any], reporter: Reporter) -> None:
    found = ", ".join(f"{num:,} {name}" for name, num in result["classes"].items() if num) or "no boxes"
    size = format_pixels(result["height"], result["width"])
    took = format_seconds(result["polygons_s"])
    text = f"{Path(result['scene']).name}: {size}, {found}, files in {took}: {result['map']}"
    reporter.say("predicted", text, **result)
