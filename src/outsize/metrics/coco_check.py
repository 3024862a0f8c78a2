"""The same scores by the official way, torchmetrics over faster-coco-eval: slow and large, but nobody's own."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from outsize.data.object import Object
from outsize.errors import RunError, explain
from outsize.metrics.instances import RECALLS, THRESHOLDS, Pictured

if TYPE_CHECKING:
    from torch import Tensor

MODULES = ("torchmetrics", "faster_coco_eval")


def is_installed() -> bool:
    """Say whether the official evaluator is here."""
    return all(importlib.util.find_spec(name) is not None for name in MODULES)


def official_scores(
    pictures: Sequence[Pictured], sizes: Sequence[tuple[int, int]], most: int
) -> dict[str, float]:
    """Return mask and box AP of pictures of `sizes` (height, width); each mask becomes as large as its picture."""
    if not is_installed():
        missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
        need, remedy = "torchmetrics and faster-coco-eval", "pip install 'outsize[coco]'"
        raise RunError(explain("the official evaluator is not installed", f"no {missing[0]}", need, remedy))
    from torchmetrics.detection import MeanAveragePrecision  # type: ignore[import-not-found, unused-ignore]

    metric = MeanAveragePrecision(
        iou_type=("bbox", "segm"),
        # its own thresholds are rounded to float32, where an IoU of 0.8 and a recall of 14/25 fall below theirs
        iou_thresholds=list(THRESHOLDS),
        rec_thresholds=RECALLS.tolist(),
        backend="faster_coco_eval",
        max_detection_thresholds=[1, 10, most],
    )
    metric.warn_on_many_detections = False
    for picture, size in zip(pictures, sizes, strict=True):
        metric.update([_tensors(picture.found, size, scores=True)], [_tensors(picture.truth, size)])
    found = metric.compute()
    names = {
        "segm_map": "ap",
        "segm_map_50": "ap50",
        "bbox_map": "box_ap",
        "bbox_map_50": "box_ap50",
    }
    # without a single found object the evaluator says -1, which is none of the precisions there are
    return {name: max(0.0, float(found[key])) for key, name in names.items()}


def _tensors(objects: Sequence[Object], size: tuple[int, int], *, scores: bool = False) -> dict[str, Tensor]:
    import torch

    masks = np.zeros((len(objects), *size), np.bool_)
    for mask, each in zip(masks, objects, strict=True):
        mask[each.window.slices] = each.mask
    tensors = {
        "boxes": torch.tensor([each.box for each in objects], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor([each.class_id for each in objects], dtype=torch.int64),
        "masks": torch.from_numpy(masks),
    }
    if scores:
        tensors["scores"] = torch.tensor([each.score for each in objects], dtype=torch.float32)
    return tensors
