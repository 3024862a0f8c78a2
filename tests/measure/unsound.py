"""Modules whose answer in tiles is not that of the whole picture, by what it depends on."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.measure.nets import BANDS, Net, conv
from torch import Tensor, nn

Make = Callable[[], nn.Module]


def net(function: Callable[[Any, Tensor], Any], **modules: Callable[[], nn.Module]) -> Make:
    return lambda: Net(function, **{name: make() for name, make in modules.items()})


def _levels(n: Any, x: Tensor) -> Tensor:
    y = x
    for _ in range(int(math.log2(min(x.shape[-2:]))) - 3):
        y = n.c(y)
    return y


def _to_multiple(x: Tensor, multiple: int, mode: str, value: float = 0.0) -> Tensor:
    height, width = x.shape[-2:]
    options = {"value": value} if mode == "constant" else {}
    return F.pad(x, (0, -width % multiple, 0, -height % multiple), mode=mode, **options)


def _cropped(n: Any, x: Tensor, padded: Tensor) -> Tensor:
    return n.c(n.c(padded))[..., : x.shape[-2], : x.shape[-1]]


def _centred(n: Any, x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    more, down = -width % 32, -height % 32
    y = n.c(n.c(F.pad(x, (more // 2, more - more // 2, down // 2, down - down // 2))))
    return y[..., down // 2 : down // 2 + height, more // 2 : more // 2 + width]


def _squared(n: Any, x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    side = max(height, width)
    return n.c(n.c(F.pad(x, (0, side - width, 0, side - height))))[..., :height, :width]


def _resized(n: Any, x: Tensor) -> Tensor:
    size = [-(-side // 64) * 64 for side in x.shape[-2:]]
    return F.interpolate(
        n.c(F.interpolate(x, size=size, mode="bilinear")), size=x.shape[-2:], mode="bilinear"
    )


SIZE: dict[str, Make] = {
    "branch on the width": net(lambda n, x: n.c(x) if x.shape[-1] > 140 else x, c=conv),
    "branch on the area": net(lambda n, x: x * 2 if x.shape[-1] * x.shape[-2] > 15000 else x),
    "branch on the longer side": net(lambda n, x: n.c(x) if x.shape[-1] > x.shape[-2] else x, c=conv),
    "branch on odd sides": net(lambda n, x: x * 2 if x.shape[-1] % 4 == 2 else x),
    "levels by size": net(_levels, c=conv),
    "as many times as tiles fit": net(lambda n, x: sum(n.c(x) for _ in range(x.shape[-1] // 48)), c=conv),
    "divided by the width": net(lambda n, x: x / x.shape[-1]),
    "divided by the number of pixels": net(lambda n, x: x * (1e4 / x[0, 0].numel())),
    "times the root of the height": net(lambda n, x: torch.tanh(x * math.sqrt(x.shape[-2]))),
    "a tensor of the width": net(lambda n, x: x + torch.tensor(float(x.shape[-1]))),
    "a new tensor of the height": net(lambda n, x: x * x.new_tensor(x.shape[-2] / 100)),
    "a full tensor of the width": net(lambda n, x: x + torch.full((1, 1, 1, 1), x.shape[-1] / 100)),
    "full everywhere": net(lambda n, x: x + torch.full_like(x, 1 / x.shape[-1])),
    "sum of ones": net(lambda n, x: x / torch.ones(x.shape[-2:]).sum()),
    "mean of positions": net(lambda n, x: x + torch.arange(x.shape[-1]).to(x.dtype).mean()),
    "size of a mask": net(lambda n, x: x * (torch.ones_like(x[:1, :1]) / x.shape[-1])),
    "embedding of the size": net(
        lambda n, x: x + n.e(torch.tensor(x.shape[-1] // 32))[:, None, None],
        e=lambda: nn.Embedding(99, BANDS),
    ),
    "one of two layers by size": net(
        lambda n, x: (n.a if x.shape[-2] > 100 else n.b)(x), a=conv, b=lambda: conv(5)
    ),
    "to a fixed size and back": net(
        lambda n, x: F.interpolate(F.interpolate(x, size=(32, 64)), size=x.shape[-2:]) + x
    ),
    "to half a fixed size": net(
        lambda n, x: F.interpolate(
            F.interpolate(x, size=(x.shape[-2] // 2, 48), mode="bilinear"), size=x.shape[-2:]
        )
    ),
    "to a multiple of 64 and back": net(_resized, c=conv),
    "pooled by an eighth of the side": net(
        lambda n, x: F.interpolate(F.avg_pool2d(x, (x.shape[-2] // 8, x.shape[-1] // 8)), size=x.shape[-2:])
    ),
    "pooled to eight": net(lambda n, x: x + F.interpolate(F.adaptive_avg_pool2d(x, 8), size=x.shape[-2:])),
    "dilated by size": net(
        lambda n, x: F.conv2d(
            x, n.c.weight, padding=max(1, x.shape[-1] // 48), dilation=max(1, x.shape[-1] // 48)
        ),
        c=conv,
    ),
    "padded by size": net(lambda n, x: F.avg_pool2d(F.pad(x, (x.shape[-1] // 48, 0)), 1)[..., : x.shape[-1]]),
    "halves swapped": net(lambda n, x: torch.cat(x.chunk(2, -1)[::-1], -1)),
    "halves averaged": net(
        lambda n, x: x + x.view(*x.shape[:2], 2, -1, x.shape[-1]).mean(2).repeat(1, 1, 2, 1)
    ),
    "eight windows a side": net(
        lambda n, x: (
            x
            + F.interpolate(
                x.reshape(len(x), BANDS, 2, x.shape[-2] // 2, 2, x.shape[-1] // 2).amax((3, 5)),
                size=x.shape[-2:],
            )
        )
    ),
    "first columns kept": net(lambda n, x: F.pad(x[..., :48], (0, x.shape[-1] - 48))),
    "position table interpolated": net(
        lambda n, x: x + F.interpolate(n.table, size=x.shape[-2:], mode="bilinear", align_corners=False)
    ),
    "a number in a dictionary": net(lambda n, x: x * {True: 1.5, False: 1.0}[x.shape[-2] > 90]),
    "through a string": net(lambda n, x: x * len(str(x.shape[-1]))),
    "align_corners": net(
        lambda n, x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear", align_corners=True)
    ),
}


def _assigned(n: Any, x: Tensor) -> Tensor:
    mask = torch.ones_like(x)
    mask[..., 0] = 0
    mask[..., -1] = 0
    return x * mask


def _row_assigned(n: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 5] = 0
    return y


def _index_assigned(n: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[..., torch.tensor([3, 7])] = 1
    return y


def _striped(n: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[..., ::3] = 0
    return y


def _grid(x: Tensor) -> Tensor:
    rows, cols = (torch.linspace(-1, 1, side, dtype=x.dtype) for side in x.shape[-2:])
    return torch.stack(torch.meshgrid(rows, cols, indexing="ij"))[None]


def _sampled(n: Any, x: Tensor) -> Tensor:
    theta = torch.tensor([[1.0, 0.1, 0.0], [0.0, 1.0, 0.0]], dtype=x.dtype).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def _attending(n: Any, x: Tensor) -> Tensor:
    y = x.flatten(2).transpose(1, 2)
    few = y[:, ::64]
    return F.scaled_dot_product_attention(y, few, few).transpose(1, 2).reshape(x.shape)


def _shifted_windows(n: Any, x: Tensor) -> Tensor:
    y = x.roll((-1, -1), (2, 3)).view(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2)
    return (y - y.mean((3, 5), keepdim=True)).reshape(x.shape).roll((1, 1), (2, 3))


def _through_positions(n: Any, x: Tensor) -> Tensor:
    pooled, found = F.max_pool2d(x, 2, return_indices=True)
    return F.interpolate(pooled + found.to(x.dtype) / 100, scale_factor=2)


PLACE: dict[str, Make] = {
    "running sum of ones": net(lambda n, x: x + torch.ones_like(x).cumsum(-1) / 100),
    "ones averaged at the border": net(lambda n, x: x / F.avg_pool2d(torch.ones_like(x), 9, 1, 4)),
    "ones convolved": net(lambda n, x: x * n.c(torch.ones_like(x)), c=lambda: conv(17)),
    "ones padded": net(lambda n, x: x * F.pad(torch.ones_like(x[..., 8:-8, 8:-8]), (8, 8, 8, 8))),
    "ones padded and pooled": net(
        lambda n, x: x + F.max_pool2d(F.pad(torch.zeros_like(x), (1, 1, 1, 1), value=1.0), 3, 1)
    ),
    "border assigned": net(_assigned),
    "zeros joined to ones": net(
        lambda n, x: x * torch.cat([torch.zeros_like(x[..., :9]), torch.ones_like(x[..., 9:])], -1)
    ),
    "triangle": net(lambda n, x: x * torch.tril(torch.ones(x.shape[-2:], dtype=x.dtype))),
    "triangle of the picture": net(lambda n, x: torch.triu(x)),
    "diagonal": net(lambda n, x: x + torch.eye(x.shape[-2], x.shape[-1], dtype=x.dtype)),
    "chessboard": net(lambda n, x: x * (torch.arange(x.shape[-1]) % 3)),
    "sine of the place": net(
        lambda n, x: x + torch.sin(torch.arange(x.shape[-2], dtype=x.dtype) / 9)[:, None]
    ),
    "coordinates joined": net(
        lambda n, x: n.c(torch.cat([x[:, :2], _grid(x).expand(len(x), -1, -1, -1)], 1)), c=conv
    ),
    "coordinates multiplied": net(lambda n, x: x * _grid(x).norm(dim=1, keepdim=True)),
    "window function": net(lambda n, x: x * torch.hann_window(x.shape[-1], dtype=x.dtype)),
    "pattern repeated": net(
        lambda n, x: x + n.table[..., :8, :8].repeat(1, 1, 99, 99)[..., : x.shape[-2], : x.shape[-1]]
    ),
    "second half": net(lambda n, x: x * (torch.arange(x.shape[-1]) > x.shape[-1] // 2)),
    "row assigned": net(_row_assigned),
    "columns assigned by index": net(_index_assigned),
    "stripes": net(_striped),
    "mirrored": net(lambda n, x: x + x.flip(-1)),
    "rolled": net(lambda n, x: x + x.roll(7, -1)),
    "rows as columns": net(lambda n, x: F.interpolate(x.mT, size=x.shape[-2:])),
    "pixels picked": net(lambda n, x: x[..., torch.arange(x.shape[-1]).flip(0)]),
    "first pixel": net(lambda n, x: x - x[..., :1, :1]),
    "running sum": net(lambda n, x: x.cumsum(2)),
    "running largest": net(lambda n, x: x.cummax(3)[0]),
    "softmax over columns": net(lambda n, x: x.softmax(-1)),
    "sorted rows": net(lambda n, x: x.sort(2)[0]),
    "largest pixels": net(lambda n, x: x * (x >= x.flatten(2).topk(5, -1)[0][..., -1:, None])),
    "divided by the largest": net(lambda n, x: x / x.amax((2, 3), keepdim=True)),
    "mean over all": net(lambda n, x: x - x.mean((1, 2, 3), keepdim=True)),
    "mean by reshape": net(lambda n, x: x - x.flatten(2).mean(-1)[..., None, None]),
    "mean by product": net(lambda n, x: x + (x.flatten(2) @ x.flatten(2).mT)[:, :, :1, None] / 1e4),
    "mean by einsum": net(lambda n, x: x + torch.einsum("bchw->bc", x)[..., None, None] / 1e4),
    "instance norm": net(lambda n, x: F.instance_norm(x)),
    "group norm": net(lambda n, x: F.group_norm(x, 2)),
    "layer norm over pixels": net(lambda n, x: F.layer_norm(x, x.shape[1:])),
    "Fourier": net(lambda n, x: torch.fft.ifft(torch.fft.fft(x) * 1j).imag + torch.fft.fft2(x).real / 1e3),
    "attention": net(_attending),
    "attention over channels": net(
        lambda n, x: ((x.flatten(2) @ x.flatten(2).mT / 1e3).softmax(-1) @ x.flatten(2)).view(x.shape)
    ),
    "shifted windows": net(_shifted_windows),
    "sampled": net(_sampled),
    "positions of the largest": net(_through_positions),
    "convolution along flattened pixels": net(
        lambda n, x: F.conv1d(x.flatten(2), n.weight[:, :, None].expand(-1, -1, 3), padding=1).view(x.shape)
    ),
    "weights from the picture": net(
        lambda n, x: F.conv2d(x, (x.mean((0, 2, 3)) * n.weight)[:, :, None, None])
    ),
    "a recurrent layer along rows": net(
        lambda n, x: n.r(x[:, :, 0].transpose(1, 2))[0].transpose(1, 2)[:, :, None] + x,
        r=lambda: nn.GRU(BANDS, BANDS, batch_first=True),
    ),
    "differences to the mean row": net(lambda n, x: x - x.mean(2, keepdim=True)),
    "a quantile": net(lambda n, x: x - x.flatten(1).quantile(0.5, 1)[:, None, None, None]),
}

BATCH: dict[str, Make] = {
    "less the mean": net(lambda n, x: x - x.mean(0)),
    "less the largest": net(lambda n, x: x - x.amax(0, keepdim=True)),
    "softmax": net(lambda n, x: x.softmax(0)),
    "rolled": net(lambda n, x: x + x.roll(1, 0)),
    "flipped": net(lambda n, x: x + x.flip(0)),
    "sorted": net(lambda n, x: x.sort(0)[0]),
    "running sum": net(lambda n, x: x.cumsum(0)),
    "normalised": net(lambda n, x: F.normalize(x, dim=0)),
    "less the first": net(lambda n, x: x - x[:1]),
    "plus the last": net(lambda n, x: x + x[-1]),
    "divided by the number": net(lambda n, x: x / len(x)),
    "branch on the number": net(lambda n, x: x * 2 if len(x) > 1 else x),
    "branch on a large number": net(lambda n, x: x * 2 if len(x) > 7 else x),
    "numbered": net(lambda n, x: x + torch.arange(len(x))[:, None, None, None]),
    "batch norm in training": net(lambda n, x: F.batch_norm(x, None, None, training=True)),
    "batch norm without statistics": net(
        lambda n, x: n.b(x), b=lambda: nn.BatchNorm2d(BANDS, track_running_stats=False)
    ),
    "compared by product": net(lambda n, x: x + torch.einsum("achw,bchw->ahw", x, x)[:, None] / 10),
    "gathered in another order": net(lambda n, x: x[torch.arange(len(x) - 1, -1, -1)]),
    "standard deviation of the batch": net(lambda n, x: x + x.std(0, unbiased=False).mean()),
    "channels of all samples": net(lambda n, x: F.softmax(x.reshape(1, -1, *x.shape[2:]), 1).view(x.shape)),
    "samples before channels": net(lambda n, x: x.transpose(0, 1).softmax(1).transpose(0, 1)),
    "median of the batch": net(lambda n, x: x - x.median(0)[0]),
    "samples mixed by a view": net(lambda n, x: x + x.reshape(BANDS, len(x), *x.shape[2:]).transpose(0, 1)),
}


def _counted(n: Any, x: Tensor) -> Tensor:
    n.calls += 1
    return x * n.calls


def _listed(n: Any, x: Tensor) -> Tensor:
    n.seen.append(1)
    return x + len(n.seen)


def _smoothed(n: Any, x: Tensor) -> Tensor:
    y = x if n.last is None or n.last.shape != x.shape else 0.5 * (x + n.last)
    n.last = x
    return y


def _averaged(n: Any, x: Tensor) -> Tensor:
    n.mean.lerp_(x.mean((0, 2, 3), keepdim=True), 0.1)
    return x - n.mean


def _averaged_later(n: Any, x: Tensor) -> Tensor:
    y = x - n.mean
    n.mean.add_(1e-3)
    return y


def _replaced(n: Any, x: Tensor) -> Tensor:
    n.mean = n.mean + 0.25
    return x + n.mean


def _first_only(n: Any, x: Tensor) -> Tensor:
    y = x * 2 if n.calls == 0 else x
    n.calls = 1
    return y


def _kept(n: Any, x: Tensor) -> Tensor:
    return x + n.known.setdefault(tuple(x.shape), x.detach().clone())


def _kept_scale(n: Any, x: Tensor) -> Tensor:
    return x / n.known.setdefault("scale", x.detach().abs().amax())


def _rarely(n: Any, x: Tensor) -> Tensor:
    n.calls += 1
    return x * 2 if n.calls % 7 == 3 else x


def _late(n: Any, x: Tensor) -> Tensor:
    n.calls += 1
    return x if n.calls < 100 else x * 2


def _queued(n: Any, x: Tensor) -> Tensor:
    if not isinstance(n.last, deque):
        n.last = deque(maxlen=3)
    n.last.append(float(x.detach().mean()) if not _is_fake(x) else 0.0)
    return x + sum(n.last)


def _is_fake(x: Tensor) -> bool:
    return type(x).__name__ != "Tensor"


def _toggled(n: Any, x: Tensor) -> Tensor:
    n.calls = 1 - n.calls
    return -x if n.calls else x


def _stepped(n: Any, x: Tensor) -> Tensor:
    if n.last is None:
        n.last = itertools.count()
    return x + next(n.last)


def _weights_changed(n: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        n.c.weight.mul_(0.9)
    return n.c(x)


def _closure() -> nn.Module:
    calls = [0]

    def forward(n: Any, x: Tensor) -> Tensor:
        calls[0] += 1
        return x + calls[0]

    return Net(forward)


class Counting(nn.Module):
    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.runs += 1
        return x + Counting.runs


HISTORY: dict[str, Make] = {
    "counts": net(_counted),
    "lists": net(_listed),
    "last picture": net(_smoothed),
    "running mean": net(_averaged),
    "running buffer used before": net(_averaged_later),
    "buffer replaced": net(_replaced),
    "first run differs": net(_first_only),
    "keeps by shape": net(_kept),
    "keeps the first scale": net(_kept_scale),
    "every seventh run": net(_rarely),
    "after a hundred runs": net(_late),
    "queue": net(_queued),
    "every other run": net(_toggled),
    "an iterator": net(_stepped),
    "weights changed": net(_weights_changed, c=conv),
    "a count in a closure": _closure,
    "a count of the class": Counting,
    "batch norm that goes on": net(
        lambda n, x: F.batch_norm(x, n.mean[0, :, 0, 0], n.mean[0, :, 0, 0] + 1, training=True)
    ),
}


def _own_generator(n: Any, x: Tensor) -> Tensor:
    if n.last is None:
        n.last = torch.Generator().manual_seed(0)
    return x + torch.rand(BANDS, 1, 1, generator=n.last)


NOISE: dict[str, Make] = {
    "noise everywhere": net(lambda n, x: x + torch.randn_like(x)),
    "noise of a fixed shape": net(lambda n, x: x + torch.randn(1, BANDS, 1, 1)),
    "one number": net(lambda n, x: x * torch.rand(())),
    "dropout": net(lambda n, x: F.dropout(x, 0.5, training=True)),
    "dropout of channels": net(lambda n, x: F.dropout2d(x, 0.5, training=True)),
    "alpha dropout": net(lambda n, x: F.alpha_dropout(x, 0.5, training=True)),
    "dropout of constants": net(lambda n, x: x * F.dropout(torch.ones(1, BANDS, 1, 1), 0.5, training=True)),
    "random slopes": net(lambda n, x: F.rrelu(x, training=True)),
    "stochastic depth": net(lambda n, x: x + n.c(x) * (torch.rand(len(x), 1, 1, 1) > 0.5), c=conv),
    "permuted channels": net(lambda n, x: x[:, torch.randperm(BANDS)]),
    "Bernoulli": net(lambda n, x: x * torch.bernoulli(torch.full((1, BANDS, 1, 1), 0.5))),
    "Gumbel": net(lambda n, x: F.gumbel_softmax(x, dim=1)),
    "filled in place": net(lambda n, x: x + torch.empty(1, BANDS, 1, 1).normal_()),
    "Python's": net(lambda n, x: x * random.random()),
    "numpy's": net(lambda n, x: x + float(np.random.rand())),  # noqa: NPY002
    "numpy's, as a tensor": net(lambda n, x: x + torch.from_numpy(np.random.rand(BANDS, 1, 1))),  # noqa: NPY002
    "a generator of its own": net(_own_generator),
    "nothing was written there": net(lambda n, x: x + torch.empty(1, BANDS, 1, 1).uniform_(1, 2)),
}

PADDING: dict[str, Make] = {
    "reflected to 32": net(lambda n, x: _cropped(n, x, _to_multiple(x, 32, "reflect")), c=lambda: conv(5)),
    "replicated to 32": net(lambda n, x: _cropped(n, x, _to_multiple(x, 32, "replicate")), c=lambda: conv(5)),
    "ones to 32": net(lambda n, x: _cropped(n, x, _to_multiple(x, 32, "constant", 1.0)), c=lambda: conv(5)),
    "zeros to 32 on both sides": net(_centred, c=lambda: conv(5)),
    "reflected to 20": net(lambda n, x: _cropped(n, x, _to_multiple(x, 20, "reflect")), c=lambda: conv(5)),
    "circular": net(lambda n, x: n.c(x), c=lambda: conv(padding_mode="circular")),
    "with the mean": net(lambda n, x: n.c(torch.cat([x, x.mean(-1, keepdim=True)], -1))[..., :-1], c=conv),
    "with a copy of the other side": net(lambda n, x: n.c(torch.cat([x[..., -2:], x], -1))[..., 2:], c=conv),
    "to a square": net(_squared, c=conv),
}

GROUPS = {
    "size": SIZE,
    "place": PLACE,
    "batch": BATCH,
    "history": HISTORY,
    "noise": NOISE,
    "padding": PADDING,
}
