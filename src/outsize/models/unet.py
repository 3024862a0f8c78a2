"""U-Net: an encoder that halves the picture, a decoder that doubles it again, and a skip on every level."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.units import format_count

NORMS = ("none", "batch", "group")
UPSAMPLINGS = ("transposed", "nearest", "bilinear")

_MAX_GROUPS = 8
_MAX_CHANNELS = (
    8192  # at the bottom: one more level has four times as many weights, and these are some two billion
)


class UNet(nn.Module):
    """A U-Net for pictures of any size and any number of bands.

    level 0   block ------------------------ skip ------------------------ block - head
                 `- pool                                               up -'
    level 1         block ------------------ skip ------------ block -'
                       `- pool                             up -'
    level 2               block (the bottleneck, levels = 3) -'

    Every 3x3 convolution keeps the size, so the logits lie exactly over the input pixels.
    """

    fills_up = True  # with zeros to its stride, and crops its logits

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        levels: int = 5,
        width: int = 32,
        convs: int = 2,
        norm: str = "batch",
        upsampling: str = "transposed",
        zero_head: bool = False,
    ) -> None:
        """`zero_head`: the first answer is 0 everywhere, for what is added to something that is right already."""
        super().__init__()
        _check_count("in_channels", in_channels, 1)
        _check_count("num_classes", num_classes, 1)
        _check_count("levels", levels, 2)
        _check_count("width", width, 1)
        _check_count("convs", convs, 1)
        _check_depth(levels, width)
        _check_choice("norm", norm, NORMS)
        _check_choice("upsampling", upsampling, UPSAMPLINGS)
        self.stride = 2 ** (levels - 1)
        # what a phase of training may name; with a dot, "decoder." is its blocks alone
        self.parts = {"decoder": ("up.", "merge.", "decoder.")}
        widths = [width * 2**level for level in range(levels)]
        self.encoder = nn.ModuleList(
            _block(inward, outward, convs, norm)
            for inward, outward in zip([in_channels, *widths[:-2]], widths[:-1], strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.bottleneck = _block(widths[-2], widths[-1], convs, norm)
        # All lists run as the decoder does, from the bottleneck to full size.
        self.up = nn.ModuleList(_up(2 * outward, outward, upsampling) for outward in reversed(widths[:-1]))
        merged = [
            (
                JoinedConv2d(2 * outward, outward, 3, padding=1, bias=norm == "none"),
                nn.Sequential(
                    *_behind(outward, norm, is_first=True), *_block(outward, outward, convs - 1, norm)
                ),
            )
            for outward in reversed(widths[:-1])
        ]
        self.merge = nn.ModuleList(merge for merge, _ in merged)
        self.decoder = nn.ModuleList(block for _, block in merged)
        self.head = nn.Conv2d(width, num_classes, 1)
        _initialise(self)
        if zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the same height and width as `images`."""
        height, width = images.shape[-2:]
        missing_rows, missing_cols = -height % self.stride, -width % self.stride
        padded = bool(missing_rows or missing_cols)
        x = F.pad(images, (0, missing_cols, 0, missing_rows)) if padded else images
        skips = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        for up, merge, block in zip(self.up, self.merge, self.decoder, strict=True):
            x = up(x)  # line by line: who calls a module holds all that goes into it until it returns
            x = merge(skips.pop(), x)
            x = block(x)
        logits = cast(Tensor, self.head(x))
        return logits[..., :height, :width] if padded else logits


class JoinedConv2d(nn.Conv2d):
    """A convolution of a skip and the enlarged map below it, side by side; a module, so that it can be found."""

    def forward(self, skip: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        """Return the convolution of both, the skip's channels first."""
        return super().forward(torch.cat((skip, up), dim=1))


def _block(in_channels: int, out_channels: int, convs: int, norm: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(convs):
        inward = in_channels if index == 0 else out_channels
        layers.append(nn.Conv2d(inward, out_channels, 3, padding=1, bias=norm == "none"))
        layers += _behind(out_channels, norm)
    return nn.Sequential(*layers)


def _behind(channels: int, norm: str, *, is_first: bool = False) -> list[nn.Module]:
    """Return what comes behind a convolution; `is_first` in a block, which must not change what it is given."""
    layers: list[nn.Module] = []
    if norm == "batch":
        layers.append(nn.BatchNorm2d(channels))
    elif norm == "group":
        layers.append(nn.GroupNorm(math.gcd(channels, _MAX_GROUPS), channels))
    # In place is safe: neither a convolution nor a norm keeps its output for backward.
    return [*layers, nn.ReLU(inplace=bool(layers) or not is_first)]


def _up(in_channels: int, out_channels: int, upsampling: str) -> nn.Module:
    if upsampling == "transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
    # A 1x1 convolution and interpolation commute (its weights sum to one), and before it costs a quarter.
    align = False if upsampling == "bilinear" else None
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1),
        nn.Upsample(scale_factor=2, mode=upsampling, align_corners=align),
    )


def _initialise(model: UNet) -> None:
    # in the order of the way through, whatever the names: the same seed gives the same network
    stages: list[nn.Module] = [model.encoder, model.bottleneck, model.up]
    stages += [each for pair in zip(model.merge, model.decoder, strict=True) for each in pair]
    for module in (inner for stage in (*stages, model.head) for inner in stage.modules()):
        if isinstance(module, nn.ConvTranspose2d):
            # With kernel = stride each output pixel sees one input pixel; no ReLU follows.
            nn.init.normal_(module.weight, std=module.in_channels**-0.5)
        elif isinstance(module, nn.Conv2d):
            nonlinearity = "relu" if module.kernel_size == (3, 3) else "linear"
            nn.init.kaiming_normal_(module.weight, nonlinearity=nonlinearity)  # type: ignore[arg-type]
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        needed = f"a whole number of at least {least}"
        raise ModelError(explain(f"unet cannot be built with {name}", repr(value), needed, f"change {name}"))


def _check_depth(levels: int, width: int) -> None:
    """Refuse more channels at the bottom than any network has; they are never counted, for they may be astronomic."""
    most_levels = (_MAX_CHANNELS // width).bit_length()  # width * 2 ** (most_levels - 1) are just allowed
    if levels > most_levels:
        doubled = f"width {width} doubled {format_count(levels - 1, 'time')}"
        remedy = (
            f"set levels = {most_levels} or fewer, or a smaller width"
            if most_levels > 1
            else "set a smaller width"
        )
        needed = f"at most {_MAX_CHANNELS} channels there"
        raise ModelError(explain("unet would have too many channels at the bottom", doubled, needed, remedy))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        needed = "one of " + ", ".join(choices)
        raise ModelError(explain(f"unet cannot be built with {name}", repr(value), needed, f"change {name}"))
