"""ERFNet: a small and fast network whose 3x3 convolutions are pairs of 3x1 and 1x3; its encoder can train first."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import ModelError, explain

ENCODER, WHOLE = "encoder", "whole"

_STRIDE = 8
_NORM_EPS = 1e-3
_DILATIONS = (2, 4, 8, 16, 2, 4, 8, 16)


class ERFNet(nn.Module):
    """Down to an eighth and up again, without skips; widths for a `width` of 16.

    size 1/2   down 16 -.                                            .- up 16, 2 pairs - head (size 1)
    size 1/4        down 64, 5 pairs -.                 .- up 64, 2 pairs
    size 1/8               down 128, 8 pairs, dilated --+-- encoder head: logits of 1/8

    `outputs` are what it can answer with, and of how many pixels a side one logit is; `output` is the one in use. The
    logits of the encoder are compared with every eighth label while it trains, and else repeated over their pixels.
    """

    outputs = {ENCODER: _STRIDE, WHOLE: 1}  # noqa: RUF012
    fills_up = True  # with zeros to its stride, and crops its logits

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        width: int = 16,
        dropout: float = 0.3,
        early_dropout: float = 0.03,
        output: str = WHOLE,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("in_channels", in_channels, 1),
            ("num_classes", num_classes, 1),
            # the first layer's convolution makes what its pooling leaves to be made
            ("width", width, in_channels + 1 if isinstance(in_channels, int) else 1),
        ):
            _check_count(name, value, least)
        if output not in self.outputs:
            needed = "one of " + ", ".join(self.outputs)
            raise ModelError(
                explain("erfnet cannot be built with output", repr(output), needed, "change output")
            )
        self.output = self.usual_output = output
        self.stride = _STRIDE
        middle, wide = 4 * width, 8 * width
        self.encoder = nn.Sequential(
            _Down(in_channels, width),
            _Down(width, middle),
            *(_Pairs(middle, 1, early_dropout) for _ in range(5)),
            _Down(middle, wide),
            *(_Pairs(wide, dilation, dropout) for dilation in _DILATIONS),
        )
        self.encoder_head = nn.Conv2d(wide, num_classes, 1)
        self.decoder = nn.Sequential(
            _up(wide, middle),
            _Pairs(middle),
            _Pairs(middle),
            _up(middle, width),
            _Pairs(width),
            _Pairs(width),
        )
        self.head = nn.ConvTranspose2d(width, num_classes, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the height and width of `images`; of an eighth where the encoder trains by itself."""
        height, width = images.shape[-2:]
        missing = (0, -width % _STRIDE, 0, -height % _STRIDE)
        x = self.encoder(F.pad(images, missing) if any(missing) else images)
        if self.output == WHOLE:
            logits = cast(Tensor, self.head(self.decoder(x)))
        else:
            logits = cast(Tensor, self.encoder_head(x))
            if self.training:
                return logits
            logits = F.interpolate(logits, scale_factor=_STRIDE, mode="nearest")
        return logits[..., :height, :width] if any(missing) else logits


class _Down(nn.Module):
    """Half the size: a convolution and a pooling beside each other."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inward, outward - inward, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.BatchNorm2d(outward, eps=_NORM_EPS)
        self.relu = nn.ReLU(inplace=True)  # a norm does not keep its output for backward

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.relu(self.norm(torch.cat((self.conv(x), self.pool(x)), dim=1))))


class _Pairs(nn.Module):
    """Two pairs of a 3x1 and a 1x3 convolution, the second pair dilated, and a way past both.

    x -- 3x1 - ReLU - 1x3 - norm - ReLU -- 3x1 - ReLU - 1x3 - norm - dropout -- (+) - ReLU ->
     `---------------------------------------------------------------------------'
    """

    def __init__(self, channels: int, dilation: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.tall1, self.wide1 = _line(channels, 1, tall=True), _line(channels, 1, tall=False)
        self.norm1 = nn.BatchNorm2d(channels, eps=_NORM_EPS)
        self.tall2, self.wide2 = _line(channels, dilation, tall=True), _line(channels, dilation, tall=False)
        self.norm2 = nn.BatchNorm2d(channels, eps=_NORM_EPS)
        self.dropout = nn.Dropout2d(dropout) if dropout else None
        # In place is safe: neither convolution, norm nor sum keeps its output for backward.
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.wide1(self.relu(self.tall1(x)))))
        y = self.norm2(self.wide2(self.relu(self.tall2(y))))
        if self.dropout is not None:
            y = self.dropout(y)
        return cast(Tensor, self.relu(y + x))


def _line(channels: int, dilation: int, *, tall: bool) -> nn.Conv2d:
    kernel, padding = ((3, 1), (dilation, 0)) if tall else ((1, 3), (0, dilation))
    return nn.Conv2d(channels, channels, kernel, padding=padding, dilation=(dilation, dilation))


def _up(inward: int, outward: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(inward, outward, 3, stride=2, padding=1, output_padding=1),
        nn.BatchNorm2d(outward, eps=_NORM_EPS),
        nn.ReLU(inplace=True),
    )


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        needed = f"a whole number of at least {least}"
        raise ModelError(
            explain(f"erfnet cannot be built with {name}", repr(value), needed, f"change {name}")
        )
