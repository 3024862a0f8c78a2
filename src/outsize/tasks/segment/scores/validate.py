"""Scores a model on whole labelled scenes without writing a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from outsize.data.sample import IGNORE
from outsize.data.sampling import areas_of
from outsize.data.scenes import LabelledScene, read_labels
from outsize.data.statistics import BandStatistics
from outsize.infer.passes import streaming
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import Settings
from outsize.metrics.confusion import Counts, Scores, confusion
from outsize.models import input_maps
from outsize.plan.plan import Tiling
from outsize.raster.reading import SceneReader
from outsize.tasks.segment.maps import Wanted, decode
from outsize.tasks.subjects import counted_pixels
from outsize.tasks.task import HeldBack


def validate(model: nn.Module, held: HeldBack) -> dict[str, Any]:
    """Return the scores of a model on scenes that are held back."""
    card = held.card
    counts, unanswered = count_scenes(
        model,
        held.scenes,
        held.table,
        bands=card.bands,
        statistics=card.statistics,
        num_classes=len(card.classes),
        tiling=held.tiling,
        settings=held.settings,
    )
    scores = Scores(tuple(each.name for each in card.classes), counts, unanswered).as_dict()
    missing = {"unanswered_px": int(unanswered.sum())} if unanswered.any() else {}
    return {"mean_iou": scores["mean_iou"] or 0.0, "pixel_accuracy": scores["pixel_accuracy"], **missing}


def count_scenes(
    model: nn.Module,
    scenes: Sequence[LabelledScene],
    table: NDArray[np.uint8],
    *,
    bands: Sequence[str],
    statistics: BandStatistics,
    num_classes: int,
    tiling: Tiling,
    settings: Settings,
) -> tuple[Counts, Counts]:
    """Predict every scene; count (true class, predicted class), and those of each class that got no answer."""
    unanswered = np.zeros(num_classes, np.int64)
    total = np.zeros((num_classes, num_classes), np.int64)
    wanted = Wanted(class_values=tuple(range(num_classes)))
    for scene in scenes:
        size = scene.image.height, scene.image.width
        # as in prediction for scenes of one window; for others, nothing is tried in the middle of a training
        ends = tiling.is_one(*size)
        tiles = [
            tile
            for tile in replace(tiling, pads=not ends).cover(*size)
            if any(area.intersect(tile.core).num_px for area in areas_of(scene))
        ]
        prepare = make_prepare(bands, scene.image, statistics, input_maps(model))
        with (
            SceneReader(scene.image) as images,
            SceneReader(scene.labels) as labels,
            streaming(
                model,
                images,
                tiles,
                prepare=prepare,
                decode=lambda logits, valid: decode(logits, valid, wanted),
                settings=settings,
            ) as results,
        ):
            for result in results:
                truth = read_labels(labels, result.tile.core, table)
                counted = counted_pixels(result.tile.core, scene.areas, None)
                if counted is not None:
                    truth[~counted] = IGNORE
                # pixels without image have class NODATA = IGNORE and fall out of the count
                total += confusion(truth, result.layers["classes"], num_classes)
                if result.unanswered is not None:
                    missed = truth[result.unanswered]
                    unanswered += np.bincount(missed[missed < num_classes], minlength=num_classes)
    return total, unanswered
