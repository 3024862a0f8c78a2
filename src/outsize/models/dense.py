"""Torchvision's detectors that answer at every place at once: FCOS and RetinaNet, on pictures that are not resized.

pictures -> residual network -> pyramid -> head -> class, box (and how near to the middle) at each anchor

Layers are torchvision's, under its names, so that its weights fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.boxes import anchors_of, clip, decode, is_there
from outsize.models.unsteady import REAL, Unsteady

STRIDES = (8, 16, 32, 64, 128)
FCOS_NAME, RETINANET_NAME = "torchvision:fcos_resnet50_fpn", "torchvision:retinanet_resnet50_fpn_v2"

_SIZES: dict[str, Sequence[float | Sequence[float]]] = {
    FCOS_NAME: STRIDES,
    RETINANET_NAME: tuple((4 * px, int(4 * px * 2 ** (1 / 3)), int(4 * px * 2 ** (2 / 3))) for px in STRIDES),
}
_RATIOS = {FCOS_NAME: (1.0,), RETINANET_NAME: (0.5, 1.0, 2.0)}
_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
_CANDIDATES = 1000  # of a level of the pyramid, that boxes are suppressed among


@dataclass(frozen=True)
class DenseOptions:
    """What a job may choose of the model; all of it goes into the card."""

    score: float = 0.01  # of objects that are found at all
    nms_iou: float = 0.5  # of two boxes of one class, of which the likelier stays
    most: int = 300  # objects of a picture
    overlap_px: int = 256  # objects of this size lie as a whole in one of a scene's tiles


class AnchorAnswers(NamedTuple):
    """What is said at each anchor of each picture, levels of the pyramid one after the other."""

    anchors: Tensor  # anchor, 4
    logits: Tensor  # picture, anchor, class; class 0 is none, and stays unused
    offsets: Tensor  # picture, anchor, 4
    centredness: Tensor  # picture, anchor; logits, and 0 where the model has none
    sizes: tuple[int, ...]  # anchors of each level


class DenseDetector(nn.Module):
    """FCOS or RetinaNet of torchvision."""

    num_background = 1  # rows of a head before those of the classes
    option_names = tuple(each.name for each in fields(DenseOptions))

    def __init__(self, name: str, *, num_classes: int, in_channels: int, **options: Any) -> None:
        super().__init__()
        chosen = DenseOptions(**options)
        self.settings: dict[str, Any] = asdict(chosen)
        self.score, self.nms_iou, self.overlap_px = chosen.score, chosen.nms_iou, chosen.overlap_px
        self.name, self.is_linear = name, name == FCOS_NAME
        whole = _built(name, num_classes + 1)
        self.backbone, self.head = whole.backbone, whole.head
        if in_channels != 3:
            body = self.backbone.body
            body.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
        plain = name.partition(":")[2]
        self.published = {"imagenet": "resnet50", "coco": plain}
        self.parts = {"heads": ("backbone.fpn", "head")}

    def forward(self, images: Tensor) -> AnchorAnswers:
        """Return what is said of pictures (sample, band, row, column) at each anchor."""
        features = list(self.backbone(images).values())
        said = self.head(features)
        shapes = [(each.shape[-2], each.shape[-1]) for each in features]
        anchors = anchors_of(shapes, STRIDES, _SIZES[self.name], _RATIOS[self.name], images.device)
        logits = said["cls_logits"]
        near = said["bbox_ctrness"].squeeze(-1) if self.is_linear else logits.new_zeros(logits.shape[:2])
        return AnchorAnswers(
            torch.cat(anchors), logits, said["bbox_regression"], near, tuple(map(len, anchors))
        )

    def boxes_of(self, answers: AnchorAnswers) -> Tensor:
        """Return the box of each anchor (picture, anchor, 4)."""
        offsets = answers.offsets if answers.offsets.dtype == torch.float64 else answers.offsets.float()
        if not self.is_linear:
            return decode(offsets, answers.anchors, _WEIGHTS)
        middles = (answers.anchors[:, :2] + answers.anchors[:, 2:]) / 2
        sides = (answers.anchors[:, 2:] - answers.anchors[:, :2]).repeat(1, 2)
        return torch.cat((middles - (offsets * sides)[..., :2], middles + (offsets * sides)[..., 2:]), -1)

    @torch.no_grad()
    def find(
        self, answers: AnchorAnswers, size_px: tuple[int, int], unsteady: Unsteady = REAL
    ) -> list[dict[str, Tensor]]:
        """Return of each picture `boxes` (object, 4), `labels` from 1 on, `scores`, and whether they are `sound`."""
        shares = answers.logits.float()[..., 1:].sigmoid()
        if self.is_linear:
            shares = (shares * answers.centredness.float().sigmoid()[..., None]).sqrt()
        sound = answers.logits.isfinite().flatten(1).all(1) & answers.offsets.isfinite().flatten(1).all(1)
        boxes = clip(self.boxes_of(answers), *size_px)
        shares = torch.where(is_there(boxes)[..., None], shares, 0.0)
        found = []
        for own_boxes, own_shares, is_sound in zip(boxes, shares, sound, strict=True):
            index, scores, labels = _likeliest(own_shares, answers.sizes)
            kept = unsteady.keep(
                own_boxes[index],
                scores,
                labels,
                iou=self.nms_iou,
                limit=self.settings["most"],
                least=self.score,
            )
            own = {"boxes": own_boxes[index][kept], "labels": labels[kept], "scores": scores[kept]}
            found.append({**own, "sound": is_sound})
        return found


def _likeliest(shares: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors, scores and labels of the likeliest answers of each level."""
    num_classes, first = shares.shape[1], 0
    index, scores, labels = [], [], []
    for own in shares.split(sizes):
        values, order = own.flatten().topk(min(_CANDIDATES, own.numel()))
        index.append(order // num_classes + first)
        labels.append(order % num_classes + 1)
        scores.append(values)
        first += len(own)
    return torch.cat(index), torch.cat(scores), torch.cat(labels)


def _built(name: str, num_rows: int) -> Any:
    """Build torchvision's own, of which backbone and head are taken."""
    from torchvision.models import detection  # type: ignore[import-untyped]

    build: Callable[..., Any] | None = getattr(detection, name.partition(":")[2], None)
    if name not in _SIZES or build is None:
        raise ModelError(
            explain("unknown model", repr(name), f"one of {', '.join(_SIZES)}", "correct the name")
        )
    return build(weights=None, weights_backbone=None, num_classes=num_rows)
