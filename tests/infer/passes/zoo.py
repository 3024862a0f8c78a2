"""Small networks that look at the whole picture, or at places that depend on its size; each in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Forward = Callable[[Any, Tensor], Tensor]


class Small(nn.Module):
    """A forward that is given, over parts that are given."""

    def __init__(self, forward: Forward, *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.run = nn.ModuleList(parts), forward

    def forward(self, x: Tensor) -> Tensor:
        """Return what the function makes of the parts and a picture."""
        return self.run(self.parts, x)


def conv(before: int, after: int, kernel: int = 3, **more: Any) -> nn.Conv2d:
    """Return a convolution that keeps the size where nothing else is said."""
    return nn.Conv2d(before, after, kernel, **{"padding": kernel // 2, **more})


def squeeze(layer: nn.Module, x: Tensor) -> Tensor:
    """Return channels weighed by the mean of the whole picture."""
    return x * torch.sigmoid(layer(x.mean((2, 3), keepdim=True)))


def _size(x: Tensor) -> tuple[int, int]:
    return x.shape[-2], x.shape[-1]


def _like(x: Tensor, y: Tensor, mode: str = "nearest", **more: Any) -> Tensor:
    return F.interpolate(x, size=_size(y), mode=mode, **more)


def _nested(m: Any, x: Tensor) -> Tensor:
    first = squeeze(m[1], m[0](x))
    return m[6](squeeze(m[3], m[2](first).relu()) + squeeze(m[5], m[4](x)))


def _cbam(m: Any, x: Tensor) -> Tensor:
    y = m[0](x)
    y = y * torch.sigmoid(m[2](F.adaptive_avg_pool2d(y, 1)) + m[2](F.adaptive_max_pool2d(y, 1)))
    return y * torch.sigmoid(m[1](torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)))


def _response_norm(m: Any, x: Tensor) -> Tensor:
    y = m[0](x).permute(0, 2, 3, 1)
    length = y.norm(p=2, dim=(1, 2), keepdim=True)
    return (y * (length / (length.mean(-1, keepdim=True) + 1e-6))).permute(0, 3, 1, 2)


def _attention(m: Any, x: Tensor) -> Tensor:
    y = m[0](x)
    rows = y.flatten(2).transpose(1, 2)
    seen = torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows
    return _like(seen.transpose(1, 2).reshape(y.shape), x)


def _coordinates(m: Any, x: Tensor) -> Tensor:
    height, width = _size(x)
    down = torch.linspace(0, 1, height, dtype=x.dtype).view(1, 1, -1, 1).expand(1, 1, height, width)
    across = torch.linspace(0, 1, width, dtype=x.dtype).view(1, 1, 1, -1).expand(1, 1, height, width)
    return m[0](torch.cat([x, down, across], 1))


def _filled(m: Any, x: Tensor) -> Tensor:
    height, width = _size(x)
    y = m[0](F.pad(x, (0, -width % 16, 0, -height % 16), mode="reflect"))
    return F.interpolate(y, scale_factor=2)[..., :height, :width]


def _shuffled(m: Any, x: Tensor) -> Tensor:
    height, width = _size(x)
    y = F.pixel_unshuffle(F.pad(x, (0, -width % 3, 0, -height % 3)), 3)
    return F.pixel_shuffle(m[0](y), 3)[..., :height, :width]


def _cropped(m: Any, x: Tensor) -> Tensor:
    made: Tensor = m[1](m[0](x))
    return F.pad(made, (0, 3, 0, 3))[..., : x.shape[-2], : x.shape[-1]]


def _split(m: Any, x: Tensor) -> Tensor:
    y = m[0](x)
    halves = torch.cat([each * each.mean((2, 3), keepdim=True) for each in y.chunk(2, 1)], 1)
    return halves + torch.stack(list(y.unbind(1)), 1)[:, [1, 0, 3, 2]]


_UP = {"mode": "bilinear", "align_corners": True}


def make_zoo() -> dict[str, nn.Module]:
    """Return all of them, by name."""
    return {
        "nested squeezes": Small(
            _nested,
            conv(3, 8),
            conv(8, 8, 1),
            conv(8, 8),
            conv(8, 8, 1),
            conv(3, 8),
            conv(8, 8, 1),
            conv(8, 4),
        ),
        "cbam": Small(_cbam, conv(3, 4), conv(2, 1, 7), conv(4, 4, 1)),
        "mean without its axes": Small(
            lambda m, x: m[0](x) * m[1](x.mean((2, 3)))[:, :, None, None], conv(3, 4), nn.Linear(3, 4)
        ),
        "mean of all": Small(lambda m, x: m[0](x) - m[0](x).mean(), conv(3, 4)),
        "mean of what was flattened": Small(
            lambda m, x: m[0](x) * m[0](x).flatten(2).mean(-1)[:, :, None, None], conv(3, 4)
        ),
        "mean of rows": Small(lambda m, x: m[0](x) * m[0](x).mean(3, keepdim=True), conv(3, 4)),
        "largest and smallest": Small(
            lambda m, x: (
                m[0](x) * torch.amax(m[0](x), (2, 3), keepdim=True) + torch.amin(x, (1, 2, 3), keepdim=True)
            ),
            conv(3, 4),
        ),
        "windows as large as the picture": Small(
            lambda m, x: m[0](x) + F.avg_pool2d(m[0](x), _size(x)) + F.max_pool2d(m[0](x), _size(x)),
            conv(3, 4),
        ),
        "bins": Small(
            lambda m, x: m[0](x) + _like(m[1](F.adaptive_avg_pool2d(m[0](x), (5, 3))), x, **_UP),
            conv(3, 4),
            conv(4, 4),
        ),
        "bins of the largest": Small(
            lambda m, x: m[0](x) + _like(F.adaptive_max_pool2d(m[0](x), (3, 4)), x, "bicubic"), conv(3, 4)
        ),
        "between corners": Small(
            lambda m, x: _like(m[1](F.interpolate(m[0](x), scale_factor=0.5, **_UP)), x, **_UP),
            conv(3, 4),
            conv(4, 4),
        ),
        "a third and bicubic": Small(
            lambda m, x: _like(
                m[1](F.interpolate(m[0](x), scale_factor=1 / 3, mode="bilinear")),
                x,
                "bicubic",
                align_corners=True,
            ),
            conv(3, 4),
            conv(4, 4),
        ),
        "half as large again": Small(
            lambda m, x: _like(m[1](F.interpolate(m[0](x), scale_factor=1.5, mode="bicubic")), x),
            conv(3, 4),
            conv(4, 4),
        ),
        "nearest exact": Small(
            lambda m, x: _like(
                F.interpolate(m[0](x), scale_factor=0.4, mode="nearest-exact"), x, "nearest-exact"
            ),
            conv(3, 4),
        ),
        "u-net": Small(
            lambda m, x: m[3](torch.cat([_like(m[2](m[1](m[0](x).relu())), x), x], 1)),
            conv(3, 4),
            conv(4, 6, stride=2),
            conv(6, 6, 5, dilation=2, padding=4),
            conv(9, 4),
        ),
        "transposed": Small(
            _cropped, conv(3, 4, stride=2), nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1)
        ),
        "transposed with gaps": Small(_cropped, conv(3, 4, stride=3), nn.ConvTranspose2d(4, 4, 2, 3, 0)),
        "transposed by four": Small(_cropped, conv(3, 4, stride=2), nn.ConvTranspose2d(4, 4, 4, 2, 1)),
        "reflected": Small(lambda m, x: m[0](F.pad(x, (1, 1, 1, 1), mode="reflect")), nn.Conv2d(3, 4, 3)),
        "replicated": Small(lambda m, x: m[0](F.pad(x, (1, 1, 1, 1), mode="replicate")), nn.Conv2d(3, 4, 3)),
        "filled up by reflection": Small(_filled, conv(3, 4, stride=2)),
        "far padding": Small(
            lambda m, x: m[1](F.pad(m[0](x), (20, 1, 2, 30), value=2.0))[..., 1:-31, 17:-4],
            conv(3, 4),
            conv(4, 4),
        ),
        "far padding of a layer": Small(lambda m, x: m[0](x)[..., 19:-19, 10:-28], conv(3, 4, padding=20)),
        "max pool": Small(lambda m, x: _like(F.max_pool2d(m[0](x), 3, 2, 1, ceil_mode=True), x), conv(3, 4)),
        "max pool of pixels apart": Small(
            lambda m, x: _like(F.max_pool2d(m[0](x), 3, 1, 0, 2), x), conv(3, 4)
        ),
        "mean pool": Small(
            lambda m, x: (
                _like(F.avg_pool2d(m[0](x), 3, 2, 1, ceil_mode=True), x)
                + F.avg_pool2d(m[0](x), 3, 1, 1, count_include_pad=False)
            ),
            conv(3, 4),
        ),
        "mean pool of what is there": Small(
            lambda m, x: _like(F.avg_pool2d(m[0](x), 2, 2, ceil_mode=True, count_include_pad=False), x),
            conv(3, 4),
        ),
        "mean pool by four": Small(
            lambda m, x: F.avg_pool2d(m[0](x), 3, 1, 1, divisor_override=4), conv(3, 4)
        ),
        "group norm": Small(
            lambda m, x: m[2](m[1](m[0](x) + 5).relu()), conv(3, 8), nn.GroupNorm(4, 8), conv(8, 4)
        ),
        "instance norm": Small(
            lambda m, x: m[2](m[1](m[0](x)).relu()), conv(3, 8), nn.InstanceNorm2d(8, affine=True), conv(8, 4)
        ),
        "response norm": Small(_response_norm, conv(3, 4)),
        "channels last": Small(
            lambda m, x: (
                m[2](m[1](m[0](x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2) * x.mean((1, 2, 3), keepdim=True)
            ),
            conv(3, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 4),
        ),
        "shuffled": Small(_shuffled, conv(27, 36)),
        "coordinates": Small(_coordinates, conv(5, 4)),
        "running sum of ones": Small(
            lambda m, x: m[0](x) + torch.cumsum(torch.ones_like(x[:, :1]), 2), conv(3, 4)
        ),
        "attention": Small(_attention, conv(3, 4, stride=8)),
        "parted": Small(_split, conv(3, 4)),
        "softmax": Small(lambda m, x: torch.softmax(m[0](x), 1) * x.amax(1, keepdim=True), conv(3, 4)),
        "every third": Small(lambda m, x: _like(m[0](x)[:, :, 1::2, ::3], x, "bilinear"), conv(3, 4)),
        "prelu": Small(lambda m, x: m[1](m[0](x)), conv(3, 4), nn.PReLU(4)),
        "divided by the width": Small(lambda m, x: m[0](x) / x.shape[-1], conv(3, 4)),
        "an embedding": Small(
            lambda m, x: m[0](x) + _like(m[1].weight.view(1, 1, 4, 4), x, "bicubic"),
            conv(3, 4),
            nn.Linear(4, 4),
        ),
        "mirrored": Small(lambda m, x: m[0](x) + m[0](x).flip(3), conv(3, 4)),
    }
