"""FastBox: an encoder, and on its coarsest grid one box for each cell, looked at a second time with finer features.

pictures -> encoder -> deep (32 px a cell) -> inner -> box, confidence
               '-----> early (8 px) -- read at 9 points of the box --> delta of the box, new confidence
https://arxiv.org/abs/1612.07695
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.boxes import clip, is_there
from outsize.models.unsteady import REAL, Unsteady

VGGS, RESNETS = ("vgg16", "vgg16_bn"), ("resnet18", "resnet34", "resnet50", "resnet101")
CELL_PX = 32
EARLY_PX = 8
ASSIGNMENTS = ("nearest", "first")

_POINTS = (-0.25, 0.0, 0.25)  # of a box's sides from its centre, where early features are read
_LAST_OF_EARLY = {"vgg16": 22, "vgg16_bn": 32}  # the ReLU of the last convolution before the fourth pooling


@dataclass(frozen=True)
class Scales:
    """Fixed factors of features and answers; they suit the features that an encoder begins with."""

    deep: float
    early: float
    box: float
    delta_box: float
    delta_logits: float


SCALES = {
    "published": Scales(0.1, 0.001, 50.0, 5.0, 50.0),  # for features of pictures that count to 255
    "even": Scales(1.0, 1.0, 32.0, 8.0, 1.0),  # for features about 1
}


@dataclass(frozen=True)
class FastBoxOptions:
    """What a job may choose of the model; all of it goes into the card."""

    encoder: str = "vgg16_bn"
    assignment: str = "nearest"  # object of a cell: the nearest centre; "first": in the order of the file
    scales: str = "even"
    inner_width: int = 500
    early_width: int = 256  # features of the second look, of those that the encoder has there
    dropout: float = 0.5
    score: float = 0.001  # of objects that are found at all
    nms_iou: float = 0.35  # of two boxes of one class, of which the likelier stays
    overlap_px: int = 256  # objects of this size lie as a whole in one of a scene's tiles


class CellAnswers(NamedTuple):
    """What each cell says: (picture, row, column, number). Boxes are centre from the cell's, and sides, in pixels."""

    boxes: Tensor  # by column, by row, width, height
    logits: Tensor  # none, classes
    deltas: Tensor  # what the second look adds to the box
    delta_logits: Tensor  # what it says of the class, in place of the first


class FastBox(nn.Module):
    """Finds one object in each cell of 32 x 32 px, at most."""

    num_background = 1  # rows of a head before those of the classes
    option_names = tuple(each.name for each in fields(FastBoxOptions))

    def __init__(self, *, num_classes: int, in_channels: int, **options: Any) -> None:
        super().__init__()
        chosen = FastBoxOptions(**options)
        self.settings: dict[str, Any] = asdict(chosen)
        _check(chosen)
        self.published = {"imagenet": chosen.encoder}
        self.scales, self.assignment = SCALES[chosen.scales], chosen.assignment
        self.score, self.nms_iou, self.overlap_px = chosen.score, chosen.nms_iou, chosen.overlap_px
        is_vgg = chosen.encoder in VGGS
        encoder = (VggEncoder if is_vgg else ResNetEncoder)(chosen.encoder, in_channels)
        deep, early = encoder.widths
        self.encoder, self.early_width = encoder, min(chosen.early_width, early)
        self.inner = nn.Linear(deep, chosen.inner_width, bias=False)
        self.box = PreciseLinear(chosen.inner_width, 4, bias=False)
        self.confidence = PreciseLinear(chosen.inner_width, num_classes + 1, bias=False)
        seen = chosen.inner_width + len(_POINTS) ** 2 * self.early_width
        self.delta_inner = nn.Linear(seen, 128, bias=False)
        self.delta_box = PreciseLinear(128, 4, bias=False)
        self.delta_confidence = PreciseLinear(128, num_classes + 1, bias=False)
        self.drop = nn.Dropout(chosen.dropout)
        heads = ("inner", "box", "confidence", "delta_inner", "delta_box", "delta_confidence")
        for name in heads:
            bound = 0.1 if chosen.scales == "published" else getattr(self, name).in_features ** -0.5
            nn.init.uniform_(getattr(self, name).weight, -bound, bound)
        self.parts = {"heads": heads}

    def forward(self, images: Tensor) -> CellAnswers:
        """Return what each cell of pictures (sample, band, row, column) says."""
        missing = [-side % CELL_PX for side in images.shape[-2:]]
        if any(missing):  # cells of 32 px go on behind the border
            images = F.pad(images, (0, missing[1], 0, missing[0]))
        deep, early = self.encoder(images)
        inner = self.drop(self.inner(deep.movedim(1, -1) * self.scales.deep))
        boxes = self.box(inner) * self.scales.box
        finer = read_at_points(_precise(early[:, : self.early_width]), boxes)
        finer = self.drop(finer.to(inner.dtype) * self.scales.early)
        seen = self.drop(F.relu(self.delta_inner(torch.cat((inner, finer), -1))))
        deltas = self.delta_box(seen) * self.scales.delta_box
        delta_logits = self.delta_confidence(seen) * self.scales.delta_logits
        return CellAnswers(boxes, self.confidence(inner), deltas, delta_logits)

    @torch.no_grad()
    def find(
        self, answers: CellAnswers, size_px: tuple[int, int], unsteady: Unsteady = REAL
    ) -> list[dict[str, Tensor]]:
        """Return of each picture `boxes` (object, 4), `labels` from 1 on, `scores`, and whether they are `sound`."""
        boxes = clip(corners(_precise(answers.boxes + answers.deltas)), *size_px).flatten(1, 2)
        shares = _precise(answers.delta_logits).softmax(-1)[..., 1:].flatten(1, 2)
        scores, labels = shares.max(-1)
        sound = answers.delta_logits.isfinite().flatten(1).all(1) & boxes.isfinite().flatten(1).all(1)
        scores = torch.where(is_there(boxes), scores, 0.0)
        found = []
        for own, own_scores, own_labels, is_sound in zip(boxes, scores, labels + 1, sound, strict=True):
            kept = unsteady.keep(
                own, own_scores, own_labels, iou=self.nms_iou, limit=len(own), least=self.score
            )
            found.append(
                {
                    "boxes": own[kept],
                    "labels": own_labels[kept],
                    "scores": own_scores[kept],
                    "sound": is_sound,
                }
            )
        return found


class PreciseLinear(nn.Linear):
    """A layer without bias that computes as precisely as its weights are, under autocast too.

    A place needs more digits than bfloat16 has: 300.5 px would be 300 or 302.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Return the weighted sums."""
        return (values.to(self.weight.dtype)[..., None, :] * self.weight).sum(-1)


class VggEncoder(nn.Module):
    """The convolutions of VGG16, under torchvision's names."""

    def __init__(self, name: str, in_channels: int) -> None:
        super().__init__()
        from torchvision.models import vgg  # type: ignore[import-untyped]

        self.features = vgg.make_layers(vgg.cfgs["D"], batch_norm=name == "vgg16_bn")
        self.features[0] = _first_like(self.features[0], in_channels)
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        self.last_of_early, self.widths = _LAST_OF_EARLY[name], (512, 512)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of 32 and of 8 px a cell."""
        found = early = images
        for number, layer in enumerate(self.features):
            found = layer(found)
            early = found if number == self.last_of_early else early
        return found, early


class ResNetEncoder(nn.Module):
    """The stages of a residual network, under torchvision's names."""

    def __init__(self, name: str, in_channels: int) -> None:
        super().__init__()
        from torchvision.models import resnet

        whole = getattr(resnet, name)(weights=None)
        self.conv1, self.bn1 = _first_like(whole.conv1, in_channels), whole.bn1
        self.relu, self.maxpool = whole.relu, whole.maxpool
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            getattr(whole, f"layer{number}") for number in (1, 2, 3, 4)
        )
        self.widths = (whole.fc.in_features, whole.fc.in_features // 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of 32 and of 8 px a cell."""
        early = self.layer2(self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(images))))))
        return self.layer4(self.layer3(early)), early


def cell_centres(values: Tensor) -> Tensor:
    """Return the centres of the cells of values (picture, row, column, number) as (row, column, 2)."""
    rows, cols = values.shape[1:3]
    down = (torch.arange(rows, device=values.device, dtype=values.dtype) + 0.5) * CELL_PX
    across = (torch.arange(cols, device=values.device, dtype=values.dtype) + 0.5) * CELL_PX
    return torch.stack((across.expand(rows, cols), down[:, None].expand(rows, cols)), -1)


def corners(boxes: Tensor) -> Tensor:
    """Turn boxes of cells (picture, row, column, 4) into left, top, right, bottom."""
    centres = boxes[..., :2] + cell_centres(boxes)
    half = boxes[..., 2:] / 2
    return torch.cat((centres - half, centres + half), -1)


def read_at_points(features: Tensor, boxes: Tensor) -> Tensor:
    """Read features at 9 points of each cell's box: (picture, row, column, 9 x feature).

    Points go down before they go across; what lies outside of the picture is read at its border.
    """
    # made on the device: a copy from the host could not be captured
    steps = (torch.arange(len(_POINTS), device=boxes.device, dtype=boxes.dtype) - 1) * _POINTS[-1]
    offsets = torch.stack((steps.repeat_interleave(len(steps)), steps.repeat(len(steps))), -1)
    centres = boxes[..., :2] + cell_centres(boxes)
    places = (centres[..., None, :] + boxes[..., None, 2:] * offsets) / EARLY_PX
    # as grid_sample counts: from -1 in the middle of the first cell to 1 in that of the last
    across, down = (places[..., axis] * 2 / (features.shape[-1 - axis] - 1) - 1 for axis in (0, 1))
    grid = torch.stack((across, down), -1).flatten(1, 2)
    found = F.grid_sample(features, grid, mode="bilinear", padding_mode="border", align_corners=True)
    read: Tensor = found.movedim(1, -1).flatten(2).unflatten(1, tuple(boxes.shape[1:3]))
    return read


def _first_like(layer: nn.Conv2d, in_channels: int) -> nn.Conv2d:
    first = nn.Conv2d(
        in_channels,
        layer.out_channels,
        kernel_size=(layer.kernel_size[0], layer.kernel_size[1]),
        stride=(layer.stride[0], layer.stride[1]),
        padding=(int(layer.padding[0]), int(layer.padding[1])),
        bias=layer.bias is not None,
    )
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    return first


def _precise(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _check(chosen: FastBoxOptions) -> None:
    known: dict[str, Sequence[str]] = {
        "encoder": (*VGGS, *RESNETS),
        "assignment": ASSIGNMENTS,
        "scales": tuple(SCALES),
    }
    for key, names in known.items():
        if getattr(chosen, key) not in names:
            found, need = repr(getattr(chosen, key)), f"one of {', '.join(names)}"
            raise ModelError(explain(f"unknown {key} of model fastbox", found, need, "correct it"))
