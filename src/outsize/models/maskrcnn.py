"""Mask R-CNN: a residual network with a pyramid, proposals, and heads for class, box and mask of each object.

Layers are torchvision's, under its names, so that its weights fit. What is between them is here: pictures are not
resized, and every tensor that is trained on has a shape that does not depend on the pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.boxes import anchors_of
from outsize.models.proposals import (
    NUM_POOLED,
    by_anchor,
    in_full,
    likeliest,
    pooled,
    propose,
    read_boxes,
    with_picture,
)
from outsize.models.unsteady import REAL, Unsteady

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101")
NORMS = ("batch", "frozen", "group")
MASK_PX = 28  # side of a mask in the frame of its box

FINEST_PX = (2, 4)
_NUM_LEVELS = 5
_AT_ONCE = 256  # masks at prediction: their memory does not grow with the objects found
_MPX = 1_000_000


@dataclass(frozen=True)
class Options:
    """What a job may choose of the model; all of it goes into the card."""

    backbone: str = "resnet50"
    norm: str = (
        "batch"  # trained; "frozen": as in the weights it starts from; "group": of each picture by itself
    )
    finest_px: int = 4  # a side of what is one cell of the finest level; 2 for small objects
    anchor_px: Sequence[float] = (32, 64, 128, 256, 512)  # one for each level of the pyramid
    anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0)  # height over width
    rois_per_image: int = 128  # boxes that the heads learn from; masks are learnt from a quarter
    proposals_per_mpx: int = 4000  # both caps grow with the picture
    detections_per_mpx: int = 1500
    least_proposals: int = 1000  # in a picture however small
    least_detections: int = 100
    score: float = 0.05  # of objects that are found at all
    nms_iou: float = 0.5  # of two boxes of one class, of which the likelier stays
    overlap_px: int = 192  # objects of this size lie as a whole in one of a scene's tiles
    width: int = 256  # of the pyramid
    head_width: int = 1024


class Answers(NamedTuple):
    """What is trained: of each picture all anchors, the boxes that were chosen, and masks of the first of these."""

    anchors: Tensor  # anchor, 4
    objectness: Tensor  # picture, anchor
    offsets: Tensor  # picture, anchor, 4: from anchors
    boxes: Tensor  # picture, box, 4
    classes: Tensor  # picture, box, class: logits; class 0 is none
    box_offsets: Tensor  # picture, box, class, 4
    masks: Tensor  # picture, box, class, row, column: logits, of the first quarter of the boxes
    chosen: Any  # what whoever chose the boxes knows of them


# proposals (picture, proposal, 4) -> boxes (picture, box, 4), and what whoever chooses wants back with the answers
Choose = Callable[[Tensor], tuple[Tensor, Any]]


class MaskRCNN(nn.Module):
    """Finds objects.

    Called with pictures it returns for each a dict of `boxes` (object, 4), `labels` from 1 on, `scores`, and `masks`
    (object, 1, 28, 28): probabilities in the frame of the box; and whether it is `sound`: no number left the range of
    what it was computed in. Called with `choose` as well, it answers about what is
    to be learnt; whoever chooses knows the objects.

    pictures -> pyramid -> objectness, offsets -> proposals -> choose -> boxes -> class, box
                                                                          '---> the first quarter -> mask
    """

    num_background = 1  # rows of a head before those of the classes
    option_names = tuple(each.name for each in fields(Options))

    def __init__(self, *, num_classes: int, in_channels: int, **options: Any) -> None:
        super().__init__()
        chosen = Options(**options)
        self.settings: dict[str, Any] = asdict(chosen)
        _check(self.settings)
        self.published = {"imagenet": chosen.backbone}
        if chosen.backbone == "resnet50":
            self.published["coco"] = "maskrcnn_resnet50_fpn"
        self.anchor_px, self.anchor_ratios = tuple(chosen.anchor_px), tuple(chosen.anchor_ratios)
        self.rois_per_image, self.masks_per_image = chosen.rois_per_image, chosen.rois_per_image // 4
        self.score, self.nms_iou, self.overlap_px = chosen.score, chosen.nms_iou, chosen.overlap_px
        self.strides = tuple(chosen.finest_px << level for level in range(_NUM_LEVELS))
        self.backbone = _trunk(chosen, in_channels)
        num_ratios = len(self.anchor_ratios)
        self.rpn, self.roi_heads = _heads(num_classes + 1, num_ratios, chosen.width, chosen.head_width)
        self.parts = {
            "heads": ("backbone.fpn", "rpn", "roi_heads"),
            "upper": ("backbone.body.layer3", "backbone.body.layer4", "backbone.fpn", "rpn", "roi_heads"),
        }

    def forward(
        self, images: Tensor, choose: Choose | None = None, unsteady: Unsteady = REAL
    ) -> Answers | list[dict[str, Tensor]]:
        """Return the objects of each picture (sample, band, row, column), or answers about boxes that are chosen."""
        features: list[Tensor] = list(self.backbone(images).values())
        size_px = images.shape[-2:]
        maps = self.rpn["head"](features)
        objectness, offsets = (
            [by_anchor(each, len(self.anchor_ratios)) for each in levels] for levels in maps
        )
        shapes = [(each.shape[-2], each.shape[-1]) for each in features]
        anchors = anchors_of(shapes, self.strides, self.anchor_px, self.anchor_ratios, images.device)
        scores = [each.squeeze(-1) for each in objectness]
        proposals = propose(
            anchors, scores, offsets, (size_px[0], size_px[1]), self.most_proposals(*size_px), unsteady
        )
        if choose is None:
            sound = torch.stack([each.isfinite().all(1) for each in scores]).all(0)
            return self._detect(features, proposals, (size_px[0], size_px[1]), sound, unsteady)
        boxes, chosen = choose(proposals)
        classes, box_offsets = read_boxes(self.roi_heads, features, self.strides, boxes, unsteady)
        masks = self._read_masks(features, with_picture(boxes[:, : self.masks_per_image]), unsteady)
        return Answers(
            torch.cat(anchors),
            torch.cat(scores, dim=1),
            torch.cat(offsets, dim=1),
            boxes,
            classes,
            box_offsets,
            masks.unflatten(0, (len(images), self.masks_per_image)),
            chosen,
        )

    def most_proposals(self, height: int, width: int) -> int:
        """Return how many boxes of a picture are looked at closely."""
        settings = self.settings
        return int(max(settings["least_proposals"], settings["proposals_per_mpx"] * height * width / _MPX))

    def most_detections(self, height: int, width: int) -> int:
        """Return how many objects may be found in a picture."""
        settings = self.settings
        return int(max(settings["least_detections"], settings["detections_per_mpx"] * height * width / _MPX))

    def _read_masks(self, features: list[Tensor], boxes: Tensor, unsteady: Unsteady) -> Tensor:
        """Return mask logits (box, class, row, column) of boxes (box, 5) with the number of their picture."""
        read = pooled(features, self.strides, boxes, MASK_PX // 2, unsteady)
        logits: Tensor = self.roi_heads["mask_predictor"](self.roi_heads["mask_head"](read))
        return logits

    def _detect(
        self,
        features: list[Tensor],
        proposals: Tensor,
        size_px: tuple[int, int],
        sound: Tensor,
        unsteady: Unsteady,
    ) -> list[dict[str, Tensor]]:
        read = read_boxes(self.roi_heads, features, self.strides, proposals, unsteady)
        sound = sound & read[0].isfinite().all(2).all(1)
        limit = self.most_detections(*size_px)
        suppress = partial(unsteady.keep, iou=self.nms_iou, limit=limit, least=self.score)
        found = likeliest(proposals, read, size_px, suppress)
        pictures = [each["boxes"].new_full((len(each["boxes"]), 1), n) for n, each in enumerate(found)]
        places = torch.cat(
            [torch.cat((n, each["boxes"]), 1) for n, each in zip(pictures, found, strict=True)]
        )
        masks = self._masks_of(features, places, torch.cat([each["labels"] for each in found]), unsteady)
        split = masks.split([len(each["labels"]) for each in found])
        return [
            {**each, "masks": own, "sound": is_sound}
            for each, own, is_sound in zip(found, split, sound, strict=True)
        ]

    def _masks_of(self, features: list[Tensor], places: Tensor, labels: Tensor, unsteady: Unsteady) -> Tensor:
        """Return for each box the mask of its class, as probabilities."""
        parts = [places.new_zeros(0, 1, MASK_PX, MASK_PX)]
        for first in range(0, len(places), _AT_ONCE):
            logits = self._read_masks(features, places[first : first + _AT_ONCE], unsteady)
            own = labels[first : first + _AT_ONCE, None, None, None]
            parts.append(in_full(logits.take_along_dim(own, 1)).sigmoid())
        return torch.cat(parts)


def _trunk(chosen: Options, in_channels: int) -> nn.Module:
    from torchvision.models import resnet  # type: ignore[import-untyped]
    from torchvision.models.detection.backbone_utils import BackboneWithFPN  # type: ignore[import-untyped]
    from torchvision.ops import FrozenBatchNorm2d  # type: ignore[import-untyped]
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool  # type: ignore[import-untyped]

    layers = {"batch": nn.BatchNorm2d, "frozen": FrozenBatchNorm2d, "group": partial(nn.GroupNorm, 32)}
    body = getattr(resnet, chosen.backbone)(weights=None, norm_layer=layers[chosen.norm])
    first = nn.Conv2d(in_channels, body.conv1.out_channels, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    body.conv1 = first
    if chosen.finest_px == FINEST_PX[0]:
        body.maxpool = nn.Identity()
    last = body.fc.in_features
    wholes = [last // 8, last // 4, last // 2, last]
    levels = {f"layer{number + 1}": str(number) for number in range(NUM_POOLED)}
    trunk: nn.Module = BackboneWithFPN(body, levels, wholes, chosen.width, extra_blocks=LastLevelMaxPool())
    return trunk


def _heads(
    num_rows: int, num_ratios: int, width: int, head_width: int
) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    """Build the heads; `num_rows` are the classes with the one of no object."""
    from torchvision.models.detection.faster_rcnn import (  # type: ignore[import-untyped]
        FastRCNNPredictor,
        TwoMLPHead,
    )
    from torchvision.models.detection.mask_rcnn import (  # type: ignore[import-untyped]
        MaskRCNNHeads,
        MaskRCNNPredictor,
    )
    from torchvision.models.detection.rpn import RPNHead  # type: ignore[import-untyped]

    rpn = nn.ModuleDict({"head": RPNHead(width, num_ratios)})
    roi_heads = nn.ModuleDict(
        {
            "box_head": TwoMLPHead(width * 7 * 7, head_width),
            "box_predictor": FastRCNNPredictor(head_width, num_rows),
            "mask_head": MaskRCNNHeads(width, (width,) * 4, 1),
            "mask_predictor": MaskRCNNPredictor(width, width, num_rows),
        }
    )
    return rpn, roi_heads


def _check(settings: dict[str, Any]) -> None:
    for key, known in (("backbone", BACKBONES), ("norm", NORMS), ("finest_px", FINEST_PX)):
        if settings[key] not in known:
            needed = f"one of {', '.join(map(str, known))}"
            raise ModelError(
                explain(f"unknown {key} of model maskrcnn", repr(settings[key]), needed, "correct it")
            )
    sizes_px = settings["anchor_px"]
    if not isinstance(sizes_px, list | tuple) or len(sizes_px) != _NUM_LEVELS:
        needed = f"{_NUM_LEVELS} sizes, one for each level of the pyramid"
        remedy = "write e.g. [8, 16, 32, 64, 128] for small objects"
        raise ModelError(explain("model.anchor_px does not fit", sizes_px, needed, remedy))
    if settings["rois_per_image"] < 4:
        raise ModelError(
            explain("model.rois_per_image is too small", settings["rois_per_image"], "at least 4", "raise it")
        )
