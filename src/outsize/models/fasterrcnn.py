"""Torchvision's Faster R-CNN with the heads of its second version, on pictures that are not resized.

pictures -> residual network -> pyramid -> objectness, offsets -> proposals -> class, box of each

Layers are torchvision's, under its names, so that its weights fit; what is between them is shared with Mask R-CNN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outsize.models.boxes import anchors_of
from outsize.models.proposals import BoxAnswers, by_anchor, likeliest, propose, read_boxes
from outsize.models.unsteady import REAL, Unsteady

FASTER_NAME = "torchvision:fasterrcnn_resnet50_fpn_v2"
COARSEST_PX = 64  # a side of a cell of the level that only proposes

_STRIDES = (4, 8, 16, 32, COARSEST_PX)
_SIZES_PX = (32.0, 64.0, 128.0, 256.0, 512.0)
_RATIOS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class FasterOptions:
    """What a job may choose of the model; all of it goes into the card."""

    rois_per_image: int = 256  # boxes that the heads learn from
    proposals: int = 1000  # of a picture
    score: float = 0.01  # of objects that are found at all
    nms_iou: float = 0.5  # of two boxes of one class, of which the likelier stays
    most: int = 300  # objects of a picture
    overlap_px: int = 256  # objects of this size lie as a whole in one of a scene's tiles


class Pyramid(NamedTuple):
    """What is said of pictures before boxes are read: features of each level, and its anchors."""

    features: list[Tensor]
    anchors: list[Tensor]
    scores: list[Tensor]  # picture, anchor; logits of being an object
    offsets: list[Tensor]  # picture, anchor, 4


Choose = Callable[
    [Tensor], tuple[Tensor, Any]
]  # proposals -> boxes (picture, box, 4), and what is known of them


class FasterRCNN(nn.Module):
    """Faster R-CNN of torchvision, version 2."""

    num_background = 1  # rows of a head before those of the classes
    option_names = tuple(each.name for each in fields(FasterOptions))

    def __init__(self, *, num_classes: int, in_channels: int, **options: Any) -> None:
        super().__init__()
        from torchvision.models import detection  # type: ignore[import-untyped]

        chosen = FasterOptions(**options)
        self.settings: dict[str, Any] = asdict(chosen)
        self.score, self.nms_iou, self.overlap_px = chosen.score, chosen.nms_iou, chosen.overlap_px
        self.rois_per_image = chosen.rois_per_image
        plain = FASTER_NAME.partition(":")[2]
        whole = getattr(detection, plain)(
            weights=None, weights_backbone=None, num_classes=num_classes + self.num_background
        )
        self.backbone = whole.backbone
        self.rpn = nn.ModuleDict({"head": whole.rpn.head})
        heads = {name: getattr(whole.roi_heads, name) for name in ("box_head", "box_predictor")}
        self.roi_heads = nn.ModuleDict(heads)
        if in_channels != 3:
            body = self.backbone.body
            body.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.published = {"imagenet": "resnet50", "coco": plain}
        self.parts = {"heads": ("backbone.fpn", "rpn", "roi_heads")}

    def forward(
        self, images: Tensor, choose: Choose | None = None, unsteady: Unsteady = REAL
    ) -> Pyramid | BoxAnswers:
        """Return what `find` makes boxes of, or answers about the boxes that whoever knows the objects chooses."""
        features: list[Tensor] = list(self.backbone(images).values())
        maps = self.rpn["head"](features)
        objectness, offsets = ([by_anchor(each, len(_RATIOS)) for each in levels] for levels in maps)
        shapes = [(each.shape[-2], each.shape[-1]) for each in features]
        anchors = anchors_of(shapes, _STRIDES, _SIZES_PX, _RATIOS, images.device)
        said = Pyramid(features, anchors, [each.squeeze(-1) for each in objectness], offsets)
        if choose is None:
            return said
        size_px = (images.shape[-2], images.shape[-1])
        boxes, chosen = choose(self._proposals(said, size_px, unsteady))
        classes, box_offsets = read_boxes(self.roi_heads, features, _STRIDES, boxes, unsteady)
        every = (torch.cat(anchors), torch.cat(said.scores, dim=1), torch.cat(offsets, dim=1))
        return BoxAnswers(*every, boxes, classes, box_offsets, chosen)

    @torch.no_grad()
    def find(
        self, answers: Pyramid, size_px: tuple[int, int], unsteady: Unsteady = REAL
    ) -> list[dict[str, Tensor]]:
        """Return of each picture `boxes` (object, 4), `labels` from 1 on, `scores`, and whether they are `sound`."""
        proposals = self._proposals(answers, size_px, unsteady)
        read = read_boxes(self.roi_heads, answers.features, _STRIDES, proposals, unsteady)
        sound = torch.stack([each.isfinite().all(1) for each in answers.scores]).all(0)
        sound = sound & read[0].isfinite().all(2).all(1)
        suppress = partial(unsteady.keep, iou=self.nms_iou, limit=self.settings["most"], least=self.score)
        found = likeliest(proposals, read, size_px, suppress)
        return [{**each, "sound": own} for each, own in zip(found, sound, strict=True)]

    def _proposals(self, said: Pyramid, size_px: tuple[int, int], unsteady: Unsteady) -> Tensor:
        limit = self.settings["proposals"]
        return propose(said.anchors, said.scores, said.offsets, size_px, limit, unsteady)
