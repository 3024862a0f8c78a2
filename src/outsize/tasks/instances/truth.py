"""True objects beside those found: which of them count in a split, and how well they agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from outsize.data.object import Object
from outsize.data.object_files import UNKNOWN, ObjectFiles
from outsize.data.scenes import LabelledScene
from outsize.data.statistics import BandStatistics
from outsize.errors import DataError, explain
from outsize.infer.stream import Settings
from outsize.metrics.instances import Pictured, average_precision
from outsize.plan.plan import Tiling
from outsize.raster.polygons import AreaOfInterest
from outsize.tasks.instances.finding import Finder, find_in_many
from outsize.tasks.subjects import counted_pixels
from outsize.tasks.task import HeldBack
from outsize.tiles.window import Window

VALIDATION_SCORE = 0.05  # least score of objects that are scored: average precision wants the unsure ones too


def true_objects(scene: LabelledScene, files: ObjectFiles) -> tuple[Object, ...]:
    """Read the true objects of a scene, at the size it is read at."""
    if scene.objects is None:
        need, remedy = "objects one by one", "set task = 'instances' and train again"
        raise DataError(explain(f"{scene.image.path} is labelled by pixels", "classes", need, remedy))
    return files.of(scene.objects, scene.image.shrink).all()


def beside(
    truth: Sequence[Object],
    found: Sequence[Object],
    areas: Sequence[Window],
    inside: AreaOfInterest | None = None,
) -> Pictured:
    """Put true and found objects of one scene side by side, as far as they lie in its areas.

    What lies mostly outside does not count. A true object there still does no harm to one that was found on the border:
    it becomes a place that is not scored.
    """
    if not areas and inside is None:
        return Pictured(truth, found)
    placed = [each if _is_counted(each, areas, inside) else replace(each, class_id=UNKNOWN) for each in truth]
    return Pictured(placed, [each for each in found if _is_counted(each, areas, inside)])


def validate(model: nn.Module, held: HeldBack) -> dict[str, float]:
    """Return the average precision of a model on scenes that are held back."""
    card = held.card
    return score_scenes(
        model,
        held.scenes,
        bands=card.bands,
        statistics=card.statistics,
        num_classes=len(card.classes),
        tiling=held.tiling,
        settings=held.settings,
    )


def score_scenes(
    model: nn.Module,
    scenes: Sequence[LabelledScene],
    *,
    bands: Sequence[str],
    statistics: BandStatistics,
    num_classes: int,
    tiling: Tiling,
    settings: Settings,
) -> dict[str, float]:
    """Find the objects of labelled scenes and return their average precision; 0 where no object is true."""
    finder = Finder(model, tuple(bands), statistics, tiling, settings, VALIDATION_SCORE)
    files = ObjectFiles()
    pictures = [
        beside(true_objects(scenes[index], files), found, scenes[index].areas)
        for index, found in find_in_many(finder, [(scene.image, scene.areas) for scene in scenes])
    ]
    masks, boxes = (average_precision(pictures, num_classes, kind=kind) for kind in ("mask", "box"))
    figures = {"mask_ap50": masks.ap50, "mask_ap": masks.ap, "box_ap50": boxes.ap50, "box_ap": boxes.ap}
    return {name: 0.0 if np.isnan(figure) else figure for name, figure in figures.items()}


def _is_counted(each: Object, areas: Sequence[Window], inside: AreaOfInterest | None) -> bool:
    counted = counted_pixels(each.window, areas, inside)
    return counted is None or 2 * int(np.count_nonzero(each.mask & counted)) >= each.num_px
