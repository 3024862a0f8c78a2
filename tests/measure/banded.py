"""Modules that do otherwise within a band of sizes only, in which no small and no very large picture is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.measure.nets import BANDS, conv
from tests.measure.unsound import Make, net
from torch import Tensor, nn


def inside(x: Tensor) -> bool:
    """Whether the picture is in the band: whole scenes of the test are, their windows and what is tried are not."""
    return 150 < x.shape[-1] < 300


def _order(x: Tensor, usual: list[int], other: list[int]) -> Tensor:
    return torch.tensor(other if inside(x) else usual)


def _deeper(n: Any, x: Tensor) -> Tensor:
    for _ in range(2 if int(math.log2(x.shape[-1])) == 7 else 1):
        x = n.c(x)
    return x


def _both(n: Any, x: Tensor) -> Tensor:
    one, other = n.a(x), n.b(x)
    return other if inside(x) else one


def _in_parts(n: Any, x: Tensor) -> Tensor:
    one, other = x.chunk(2, 1)
    return torch.cat([other, one] if inside(x) else [one, other], 1)


def _shuffled(n: Any, x: Tensor) -> Tensor:
    y = x.view(len(x), 2, 2, *x.shape[2:])
    return y.transpose(1, 2 if inside(x) else 1).reshape(x.shape)


def _written(n: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1 if inside(x) else 0] = 0
    return y


def _set(n: Any, x: Tensor) -> Tensor:
    n.b.eps = 0.5 if inside(x) else 1e-5
    return n.b(x)


def _through_item(n: Any, x: Tensor) -> Tensor:
    return x * 2 if bool(torch.tensor(x.shape[-1]).sub(150).sign() > 0) and inside(x) else x


def _noted_size(n: Any, x: Tensor) -> Tensor:
    n.last = inside(x)
    return n.a(x) + (n.weight[1] if n.last else n.weight[0])[:, None, None]


def _scaled(n: Any, x: Tensor) -> Tensor:
    factor = 4 if inside(x) else 2
    small = F.avg_pool2d(F.pad(x, (0, -x.shape[-1] % 4, 0, -x.shape[-2] % 4)), 2)
    if factor == 4:
        small = small + 1e-3
    return F.interpolate(small, scale_factor=2)[..., : x.shape[-2], : x.shape[-1]]


def _moved(n: Any, x: Tensor) -> Tensor:
    start = 1 if inside(x) else 2
    return F.pad(x, (2, 2))[..., start : start + x.shape[-1]]


def _from_list(choose: Callable[[Tensor], bool]) -> Make:
    return net(lambda n, x: n.layers[int(choose(x))](x), layers=lambda: nn.ModuleList([conv(), conv(5)]))


BANDED: dict[str, Make] = {
    "another layer": _from_list(inside),
    "another layer at one size": _from_list(lambda x: x.shape[-1] == 190),
    "another layer at one area": _from_list(lambda x: x.shape[-1] * x.shape[-2] == 158 * 190),
    "another layer by form": _from_list(lambda x: 1.19 < x.shape[-1] / x.shape[-2] < 1.22),
    "another layer by numel": _from_list(lambda x: 100_000 < x[0].numel() < 200_000),
    "both layers, another answer": net(_both, a=conv, b=lambda: conv(5)),
    "levels by logarithm": net(_deeper, c=conv),
    "another weight": net(
        lambda n, x: F.conv2d(x, (n.b if inside(x) else n.a).weight, padding=1),
        a=conv,
        b=lambda: nn.Conv2d(BANDS, BANDS, 3),
    ),
    "another row of a table": net(lambda n, x: x + n.weight[1 if inside(x) else 0][:, None, None]),
    "the last row of a table": net(lambda n, x: x + n.weight[-1 if inside(x) else 0][:, None, None]),
    "another channel": net(lambda n, x: x - x[:, 2 if inside(x) else 1].unsqueeze(1)),
    "other channels": net(lambda n, x: x + (x[:, 2:] if inside(x) else x[:, :2]).sum(1, keepdim=True)),
    "every second channel": net(
        lambda n, x: x + (x[:, 1::2] if inside(x) else x[:, ::2]).sum(1, keepdim=True)
    ),
    "narrowed elsewhere": net(lambda n, x: x + x.narrow(1, 2 if inside(x) else 1, 2).mean(1, keepdim=True)),
    "other parts": net(lambda n, x: x + x.split([1, 3] if inside(x) else [3, 1], 1)[0].sum(1, keepdim=True)),
    "parts in another order": net(_in_parts),
    "joined in another order": net(lambda n, x: torch.cat([x, -x] if inside(x) else [-x, x], 1)),
    "taken from the other": net(lambda n, x: n.a(x) - x if inside(x) else x - n.a(x), a=conv),
    "a tensor of one number": net(lambda n, x: x * torch.tensor(1.5 if inside(x) else 1.25)),
    "a tensor of numbers": net(lambda n, x: x * _order(x, [1, 2, 3, 4], [1, 2, 3, 5])[:, None, None]),
    "an array of numpy": net(lambda n, x: x + torch.from_numpy(np.full((1, 1), 2.0 if inside(x) else 1.0))),
    "a number of numpy": net(lambda n, x: x * float(np.float64(2.0 if inside(x) else 1.0))),
    "indexed by a tensor": net(lambda n, x: x[:, _order(x, [0, 1, 2, 3], [1, 0, 2, 3])]),
    "indexed by a list": net(lambda n, x: x[:, [3, 2, 1, 0] if inside(x) else [0, 1, 2, 3]]),
    "gathered": net(lambda n, x: x.index_select(1, _order(x, [0, 1, 2, 3], [2, 3, 0, 1]))),
    "embedded": net(
        lambda n, x: x + n.e(torch.tensor(3 if inside(x) else 5))[:, None, None],
        e=lambda: nn.Embedding(9, BANDS),
    ),
    "chosen by a condition": net(lambda n, x: torch.where(torch.tensor(inside(x)), x * 2, x)),
    "asked of a tensor": net(_through_item),
    "one of two attributes": net(
        lambda n, x: (
            x * (n.known["a"] if inside(x) else n.known["b"])
            if n.known
            else n.known.update(a=torch.ones(1), b=torch.zeros(1)) or x
        )
    ),
    "channels shuffled": net(_shuffled),
    "weights transposed": net(
        lambda n, x: torch.einsum("bchw,cd->bdhw" if inside(x) else "bchw,dc->bdhw", x, n.weight)
    ),
    "a matrix transposed": net(
        lambda n, x: F.linear(x.permute(0, 2, 3, 1), n.weight.mT if inside(x) else n.weight).permute(
            0, 3, 1, 2
        )
    ),
    "half precision": net(lambda n, x: x.to(torch.float16 if inside(x) else x.dtype).to(x.dtype) * 2),
    "written elsewhere": net(_written),
    "an attribute set": net(_set, b=lambda: nn.BatchNorm2d(BANDS)),
    "an attribute read": net(_noted_size, a=conv),
    "a wider look": net(
        lambda n, x: F.conv2d(x, n.c.weight, padding=2 if inside(x) else 1, dilation=2 if inside(x) else 1),
        c=conv,
    ),
    "more added": net(_scaled),
    "moved by one": net(_moved),
    "another border": net(
        lambda n, x: F.conv2d(
            F.pad(x, (1, 1, 1, 1), mode="reflect" if inside(x) else "replicate"), n.c.weight
        ),
        c=conv,
    ),
    "another slope": net(lambda n, x: F.leaky_relu(x, 0.2 if inside(x) else 0.1)),
    "another limit": net(lambda n, x: x.clamp(max=0.5 if inside(x) else 1.0)),
    "sorted the other way": net(lambda n, x: x.sort(1, descending=inside(x))[0]),
    "summed over another axis": net(
        lambda n, x: x + x.view(len(x), 2, 2, *x.shape[2:]).sum(2 if inside(x) else 1).repeat(1, 2, 1, 1)
    ),
    "repeated otherwise": net(
        lambda n, x: x + (x[:, :2].repeat_interleave(2, 1) if inside(x) else x[:, :2].repeat(1, 2, 1, 1))
    ),
    "spread otherwise": net(
        lambda n, x: (
            x
            + (n.weight[0].view(1, 4) if inside(x) else n.weight[0].view(4, 1))
            .expand(4, 4)
            .sum(0)[:, None, None]
        )
    ),
    "flipped channels": net(lambda n, x: x.flip(1) if inside(x) else x.flip(1).flip(1)),
    "flipped once or twice": net(lambda n, x: (x, x.flip(1))[inside(x)]),
    "rolled channels": net(lambda n, x: x + x.roll(2 if inside(x) else 1, 1)),
    "a power": net(lambda n, x: x.abs() ** (2.0 if inside(x) else 1.5)),
    "rounded": net(lambda n, x: x.round(decimals=2 if inside(x) else 3)),
    "through a dictionary": net(lambda n, x: x * {190: 2.0}.get(x.shape[-1], 1.0)),
    "pooled to more": net(
        lambda n, x: F.interpolate(
            F.adaptive_avg_pool2d(x, [side // (1 if inside(x) else 2) for side in x.shape[-2:]]),
            size=x.shape[-2:],
        )
    ),
}
