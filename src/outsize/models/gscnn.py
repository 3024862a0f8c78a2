"""G-SCNN: a trunk that sees classes and a narrow stream that sees shapes, joined by a pyramid of dilations.

Written from the published description. Where it differs from the release: the map of lines (Canny) is that of the
picture and not of its normalised values, and is 0 or 1 and not 0 or 255; an unused convolution of 65 parameters is
left out; and the losses, which stand in `losses/gscnn.py`, are no part of the network.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.resized import Resized
from outsize.models.wider_resnet import WiderResNet38

_DILATIONS = (12, 24, 36)
_NARROWEST = 8  # the shape stream halves the width three times


class Shapes(NamedTuple):
    """What the network says of each pixel: logits of its class, and the logit of an edge being there."""

    logits: Tensor
    edges: Tensor


class GSCNN(nn.Module):
    """G-SCNN; a width of 64 is the published one.

    picture - mod1 - mod2 - mod3 - mod4 - mod5 - mod6 - mod7 ---- pyramid -- up -- head - up - class logits
                |      `-------------|------|--------------|--------|-------'
                |                    |side  |side          |side    |
                `- shape: block -- gate - gate --------- gate - edge logits
                                                                    |
    lines of the picture ---------------------------------------- gate of the pyramid

    The input is the bands and, as one more, the map of lines that `input_maps` names. Where `finds_edges` is True,
    forward answers with the logits of edges, too, if asked for them.
    """

    input_maps = ("canny",)
    finds_edges = True

    def __init__(self, *, in_channels: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        if not isinstance(width, int) or isinstance(width, bool) or width < _NARROWEST or width % _NARROWEST:
            needed = f"a multiple of {_NARROWEST}"
            raise ModelError(explain("gscnn cannot be built with width", repr(width), needed, "change width"))
        self.trunk = WiderResNet38(in_channels=in_channels, num_classes=num_classes, width=width)
        self.trunk.head = nn.Identity()  # type: ignore[assignment]  # what follows is made from its features
        self.stride = self.trunk.stride
        deep, inner, low = 64 * width, 4 * width, 3 * width // 4
        self.shape = _ShapeStream(width)
        self.fuse = nn.Conv2d(2, 1, 1, bias=False)
        self.pyramid = _Pyramid(deep, inner)
        self.squeeze = nn.Conv2d(6 * inner, inner, 1, bias=False)
        self.low = nn.Conv2d(2 * width, low, 1, bias=False)
        self.head = nn.Sequential(
            *_normed(low + inner, inner, 3),
            *_normed(inner, inner, 3),
            nn.Conv2d(inner, num_classes, 1, bias=False),
        )
        self.resize_deep, self.resize_logits = Resized(align_corners=True), Resized(align_corners=False)
        for module in (*self.head, self.squeeze, self.low):
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor, edges: bool = False) -> Tensor | Shapes:
        """Return logits of classes, and with `edges` those of edges too, of the height and width of `images`."""
        _refuse_one(self.pyramid, images)
        picture, lines = images[:, :-1], images[:, -1:]
        size = images.shape[-2:]
        features = self.trunk.features(picture, ("mod1", "mod2", "mod3", "mod4", "mod7"))
        at_edges = self.shape(features)
        shown = torch.sigmoid(self.fuse(torch.cat((torch.sigmoid(at_edges), lines), dim=1)))
        deep = self.squeeze(self.pyramid(features["mod7"], shown))
        low = self.low(features["mod2"])
        logits = self.head(torch.cat((low, self.resize_deep(deep, low.shape[-2:])), dim=1))
        logits = self.resize_logits(logits, size)
        return Shapes(logits, at_edges) if edges else logits


class _ShapeStream(nn.Module):
    """Full size and few channels: three gates, each opened by a deeper stage of the trunk."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (width, width // 2, width // 4, width // 8)
        self.sides = nn.ModuleDict(
            {
                f"mod{stage}": nn.Conv2d(multiple * width, 1, 1)
                for stage, multiple in ((3, 4), (4, 8), (7, 64))
            }
        )
        self.blocks = nn.ModuleList(_Residual(each) for each in widths[:-1])
        self.narrow = nn.ModuleList(nn.Conv2d(before, after, 1) for before, after in pairwise(widths))
        self.gates = nn.ModuleList(_Gate(each) for each in widths[1:])
        self.edge = nn.Conv2d(widths[-1], 1, 1, bias=False)
        self.resize = Resized(align_corners=True)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        x = features["mod1"]
        size = x.shape[-2:]
        for (name, side), block, narrow, gate in zip(
            self.sides.items(), self.blocks, self.narrow, self.gates, strict=True
        ):
            opened = self.resize(side(features[name]), size)
            x = gate(narrow(block(x)), opened)
        return cast(Tensor, self.edge(x))


class _Residual(nn.Module):
    """Two 3x3 convolutions and a way past them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        # In place is safe: neither a norm nor a sum keeps its output for backward.
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return cast(Tensor, self.relu(y + x))


class _Gate(nn.Module):
    """Lets through more where both the stream and a side map of the trunk find a shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        both = channels + 1
        self.attention = nn.Sequential(
            nn.BatchNorm2d(both),
            nn.Conv2d(both, both, 1),
            nn.ReLU(inplace=True),  # a convolution does not keep its output for backward
            nn.Conv2d(both, 1, 1),
            nn.BatchNorm2d(1),
            nn.Sigmoid(),
        )
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.xavier_normal_(self.conv.weight)

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        alpha = self.attention(torch.cat((x, side), dim=1))
        return cast(Tensor, self.conv(x * (1 + alpha)))


class _Pyramid(nn.Module):
    """The whole picture, its shapes, each pixel, and three widths around it, side by side."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), *_normed(inward, outward, 1))
        self.shapes = nn.Sequential(*_normed(1, outward, 1))
        self.branches = nn.ModuleList([nn.Sequential(*_normed(inward, outward, 1))])
        self.branches.extend(
            nn.Sequential(*_normed(inward, outward, 3, dilation=dilation)) for dilation in _DILATIONS
        )
        self.resize = Resized(align_corners=True)

    def forward(self, x: Tensor, shapes: Tensor) -> Tensor:
        size = x.shape[-2:]
        parts = [self.resize(self.pooled(x), size), self.shapes(self.resize(shapes, size))]
        return torch.cat([*parts, *(branch(x) for branch in self.branches)], dim=1)


def _normed(inward: int, outward: int, kernel: int, *, dilation: int = 1) -> list[nn.Module]:
    padding = dilation if kernel == 3 else 0
    conv = nn.Conv2d(inward, outward, kernel, padding=padding, dilation=dilation, bias=False)
    return [conv, nn.BatchNorm2d(outward), nn.ReLU(inplace=True)]


def _refuse_one(pyramid: _Pyramid, images: Tensor) -> None:
    """Refuse to train on one picture: of a single value a channel the norm of the pooled branch has no spread."""
    if len(images) < 2 and pyramid.pooled[2].training:
        raise ModelError(
            explain(
                "gscnn cannot be trained on one picture at a time",
                "1 picture on the device",
                "at least 2, for one branch norms a single value of each picture",
                "set train.batch to 2 or more for each device",
            )
        )
