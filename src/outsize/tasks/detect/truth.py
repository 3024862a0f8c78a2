"""True boxes beside those found: which of them count, KITTI's measure and COCO's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from outsize.data.boxes import IGNORED, NEUTRAL, Boxes, BoxFiles, SceneBoxes
from outsize.data.object import Object
from outsize.data.sample import Samples
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, explain
from outsize.job import DataSection
from outsize.metrics.instances import Pictured, Precision, average_precision
from outsize.metrics.kitti import CLASSES, KittiScores, kitti_scores
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.tasks.detect.files import as_named
from outsize.tasks.detect.finding import BoxFinder, find_boxes
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.task import HeldBack, ToLearn
from outsize.tasks.windows import open_windows
from outsize.tiles.window import Window

_FINE = 4  # parts of a pixel that COCO's measure is given boxes in


@dataclass(frozen=True)
class BoxScores:
    """The figures of both measures over all pictures."""

    coco: Precision
    kitti: KittiScores | None  # of classes that KITTI knows

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return every figure, for scores.json."""
        return {
            "box": self.coco.as_dict(names),
            "kitti": None if self.kitti is None else self.kitti.as_dict(),
        }


def true_boxes(scene: LabelledScene, files: BoxFiles) -> SceneBoxes:
    """Read the true boxes of a scene, in the pixels of its file, whatever size it is read at."""
    if scene.boxes is None:
        need, remedy = "boxes", "set task = 'detect' and train again"
        raise DataError(explain(f"{scene.image.path} is not labelled by boxes", "other labels", need, remedy))
    return files.of(scene.boxes)


def open_samples(given: ToLearn, reporter: Reporter) -> tuple[Samples, NDArray[np.int64] | None]:
    """Open what windows are drawn from; refuse scenes in which there is no box to learn."""
    files = BoxFiles()
    if not any((true_boxes(scene, files).class_ids >= 0).any() for scene in given.scenes):
        found, need = f"{len(given.scenes)} pictures without a box of a class", "at least one"
        raise DataError(explain("nothing to train on", found, need, "see what `outsize check` counts"))
    return open_windows(given, reporter)


def named_truth(held: SceneBoxes, data: DataSection) -> Boxes:
    """Return true boxes with the names of their classes; what was joined to a class keeps the label of its file."""
    names, joined = [each.name for each in data.classes], {each.lower() for each in data.joined}
    labels = [
        names[number] if number >= 0 and label.lower() not in joined else label
        for label, number in zip(held.boxes.labels.tolist(), held.class_ids.tolist(), strict=True)
    ]
    return replace(held.boxes, labels=np.array(labels, np.str_))


def are_counted(
    sides: NDArray[np.float64], areas: Sequence[Window], inside: AreaOfInterest | None, shrink: int = 1
) -> NDArray[np.bool_]:
    """Say which boxes have their middle in one of the areas, and in the area of interest.

    Sides are in pixels of the file, areas in those that are read, each of `shrink` a side.
    """
    across, down = (sides[:, 0] + sides[:, 2]) / 2 / shrink, (sides[:, 1] + sides[:, 3]) / 2 / shrink
    counted = np.full(len(sides), not areas)
    for area in areas:
        counted |= (area.row <= down) & (down < area.row_end) & (area.col <= across) & (across < area.col_end)
    if inside is not None:
        for index in np.flatnonzero(counted).tolist():
            counted[index] = inside.mask(Window(int(down[index]), int(across[index]), 1, 1)).all()
    return counted


def score(truth: Sequence[SceneBoxes], found: Sequence[FoundBoxes], data: DataSection) -> BoxScores:
    """Score the boxes found in pictures against those that are true of them."""
    names = [each.name for each in data.classes]
    pictures = [Pictured(*(_as_objects(each) for each in pair)) for pair in zip(truth, found, strict=True)]
    coco = average_precision(pictures, len(names), kind="box", scale=1 / _FINE)
    known = {each.lower() for each in CLASSES}
    classes = [name for name in names if name.lower() in known]
    if not classes:
        return BoxScores(coco, None)
    named = [named_truth(each, data) for each in truth]
    return BoxScores(coco, kitti_scores(named, [as_named(each, names) for each in found], classes))


def validate(model: nn.Module, held: HeldBack) -> dict[str, float]:
    """Return the average precision of a model on scenes that are held back."""
    card, files = held.card, BoxFiles()
    finder = BoxFinder(model, card.bands, card.statistics, held.tiling, held.settings)
    truth: list[SceneBoxes] = []
    found: list[FoundBoxes] = []
    for index, own in find_boxes(finder, [(scene.image, scene.areas) for scene in held.scenes]):
        scene = held.scenes[index]
        seen = beside(true_boxes(scene, files), own, scene)
        truth.append(seen[0])
        found.append(seen[1])
    names = [each.name for each in card.classes]
    pictures = [Pictured(*(_as_objects(each) for each in pair)) for pair in zip(truth, found, strict=True)]
    coco = average_precision(pictures, len(names), kind="box", scale=1 / _FINE)
    figures = {"box_ap": coco.ap, "box_ap50": coco.ap50}
    return {name: 0.0 if np.isnan(figure) else figure for name, figure in figures.items()}


def beside(
    truth: SceneBoxes, found: FoundBoxes, scene: LabelledScene, inside: AreaOfInterest | None = None
) -> tuple[SceneBoxes, FoundBoxes]:
    """Put true and found boxes of one scene side by side, as far as they are in its areas.

    A true one outside does no harm to one that was found on the border: it becomes a place that is not scored.
    """
    if not scene.areas and inside is None:
        return truth, found
    limits = scene.areas, inside, scene.image.shrink
    counted = are_counted(truth.boxes.sides, *limits)
    labels = np.where(counted, truth.boxes.labels, IGNORED)
    placed = SceneBoxes(replace(truth.boxes, labels=labels), np.where(counted, truth.class_ids, NEUTRAL))
    return placed, found.take(are_counted(found.sides, *limits))


def _as_objects(boxes: SceneBoxes | FoundBoxes) -> list[Object]:
    """Return boxes as objects in parts of a pixel; their masks take no memory."""
    sides = boxes.boxes.sides if isinstance(boxes, SceneBoxes) else boxes.sides
    scores = boxes.boxes.scores if isinstance(boxes, SceneBoxes) else boxes.scores
    objects = []
    for (left, top, right, bottom), class_id, score_ in zip(
        np.round(sides * _FINE).astype(int).tolist(), boxes.class_ids.tolist(), scores.tolist(), strict=True
    ):
        window = Window(top, left, max(1, bottom - top), max(1, right - left))
        mask = np.broadcast_to(np.True_, (window.height, window.width))
        objects.append(Object(class_id, window, mask, score=score_))
    return objects
