"""More modules whose answer in tiles is not the whole picture's: what they do is far from where one looks."""

from __future__ import annotations

import itertools
import math
import os
import time
import uuid
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.measure.nets import BANDS, Net, conv
from tests.measure.unsound import Make, net
from torch import Tensor, nn

_SEEN: list[int] = []
_NUMBERS = np.random.default_rng(5)


def _in_a_file_of_its_own(_: Any, x: Tensor) -> Tensor:
    _SEEN.append(1)
    return x * len(_SEEN)


def _by_default(_: Any, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006 (which is the point)
    seen.append(1)
    return x * len(seen)


def _on_itself(_: Any, x: Tensor) -> Tensor:
    _on_itself.calls = getattr(_on_itself, "calls", 0) + 1  # type: ignore[attr-defined]
    return x + _on_itself.calls  # type: ignore[attr-defined]


def _fed_back(n: Any, x: Tensor) -> Tensor:
    scale = 1.0 if n.last is None else n.last
    n.last = scale * 0.5
    return x * scale


def _now_and_then(n: Any, x: Tensor) -> Tensor:
    n.calls += 1
    return x * (2 if n.calls % 50 == 0 else 1)


def _full(n: Any, x: Tensor) -> Tensor:
    if not isinstance(n.last, deque):
        n.last = deque(maxlen=50)
    n.last.append(1)
    return x * (2 if len(n.last) == 50 else 1)


def _in_a_dict(n: Any, x: Tensor) -> Tensor:
    n.known["calls"] = n.known.get("calls", 0) + 1
    return x * (2 if n.known["calls"] > 80 else 1)


def _as_text(n: Any, x: Tensor) -> Tensor:
    n.last = (n.last or "") + "x"
    return x * (2 if len(n.last) > 80 else 1)


def _by_numpy(n: Any, x: Tensor) -> Tensor:
    n.calls = np.int64(n.calls) + 1
    return x * (2 if n.calls > 60 else 1)


def _yielded(n: Any, x: Tensor) -> Tensor:
    if n.last is None:
        n.last = (1 if number < 30 else 2 for number in itertools.count())
    return x * next(n.last)


def _momentum(n: Any, x: Tensor) -> Tensor:
    n.mean.mul_(0.9).add_(x.detach().mean((0, 2, 3), keepdim=True) * 0.1)
    return x - n.mean


def _environment(_: Any, x: Tensor) -> Tensor:
    os.environ["OUTSIZE_TEST_CALLS"] = str(int(os.environ.get("OUTSIZE_TEST_CALLS", "0")) + 1)
    return x * int(os.environ["OUTSIZE_TEST_CALLS"])


def _hooked() -> nn.Module:
    """Counts in a hook, not in a forward."""
    model = Net(lambda n, x: n.c(x), c=conv())
    calls = [0]

    def count(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        calls[0] += 1
        return output * calls[0]

    model.c.register_forward_hook(count)
    return model


def _seeded_by_size(_: Any, x: Tensor) -> Tensor:
    return x * torch.rand(1, generator=torch.Generator().manual_seed(x.shape[-1]))


def _quantised(_: Any, x: Tensor) -> Tensor:
    step = x.detach().abs().amax() / 127
    return (x / step).round() * step


def _drawn_to_the_side(_: Any, x: Tensor) -> Tensor:
    """Pads one side more where the sum of both sides is odd."""
    more = (x.shape[-1] // 7) % 2
    return F.avg_pool2d(F.pad(x, (1 + more, 1 - more, 1, 1)), 3, 1)


def _halved(n: Any, x: Tensor) -> Tensor:
    """Runs the left and the right half by themselves."""
    near, far = x.chunk(2, -1)
    return torch.cat([n.c(near), n.c(far)], -1)


def _in_squares(n: Any, x: Tensor) -> Tensor:
    """Runs squares of 32 px by themselves."""
    rows = [torch.cat([n.c(part) for part in row.split(32, -1)], -1) for row in x.split(32, -2)]
    return torch.cat(rows, -2)


def _weighed(_: Any, x: Tensor) -> Tensor:
    return x * torch.softmax(x.flatten(2).sum(-1), 1)[..., None, None]


def _below(n: Any, x: Tensor) -> Tensor:
    """A quarter of the picture, made twice as large, at every pixel."""
    inner = x[..., x.shape[-2] // 4 : -(x.shape[-2] // 4), x.shape[-1] // 4 : -(x.shape[-1] // 4)]
    return x + F.interpolate(inner, size=x.shape[-2:])


SLY: dict[str, Make] = {
    "place: distances from row to row": net(lambda n, x: x + torch.cdist(x, x).mean(-1, keepdim=True)),
    "place: ranges of its own": net(
        lambda n, x: x * torch.bucketize(x.contiguous(), x[0, 0, :, 0].sort().values)
    ),
    "place: waves of all of it": net(lambda n, x: x * torch.fft.fft2(x).abs().amax((2, 3), keepdim=True)),
    "history: a list of its file": net(_in_a_file_of_its_own),
    "history: a default": net(_by_default),
    "history: an attribute of a function": net(_on_itself),
    "history: fed back": net(_fed_back),
    "history: momentum": net(_momentum),
    "history: every fiftieth run": net(_now_and_then),
    "history: a deque fills": net(_full),
    "history: a dict counts": net(_in_a_dict),
    "history: a text grows": net(_as_text),
    "history: a number of numpy's counts": net(_by_numpy),
    "history: a generator": net(_yielded),
    "history: the environment": net(_environment),
    "history: a hook": _hooked,
    "history: each batch a sample": net(lambda n, x: x + len(n.seen.append(0) or n.seen)),
    "history: weights drift": net(lambda n, x: x * n.weight.data.mul_(0.99)[0, 0]),
    "noise: the clock": net(lambda _, x: x + time.perf_counter() % 1),
    "noise: a new name": net(lambda _, x: x * (uuid.uuid4().int % 1009)),
    "noise: of the system": net(lambda _, x: x + os.urandom(1)[0]),
    "noise: a generator of its file": net(lambda _, x: x * float(_NUMBERS.random())),
    "noise: seeded by the size": net(_seeded_by_size),
    "noise: of each sample": net(lambda _, x: x * torch.rand(len(x), 1, 1, 1)),
    "noise: by a layer": net(lambda n, x: n.d(x), d=lambda: _Always(nn.Dropout2d(0.4))),
    "noise: masked": net(lambda _, x: torch.where(torch.rand(1, BANDS, 1, 1) > 0.5, x, -x)),
    "batch: less a quantile": net(lambda _, x: x - x.quantile(0.3, 0)),
    "batch: the best sample": net(lambda _, x: x + x.max(0)[0] / 9),
    "batch: paired": net(lambda _, x: x + F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]),
    "batch: an average over channels and samples": net(lambda _, x: x - x.mean((0, 1), keepdim=True)),
    "batch: attention over samples": net(
        lambda _, x: torch.einsum("ab,bchw->achw", (x.mean((2, 3)) @ x.mean((2, 3)).mT).softmax(-1), x)
    ),
    "batch: the root of the number": net(lambda _, x: x / math.sqrt(len(x))),
    "size: quantised by the largest": net(_quantised),
    "size: the logarithm of it": net(lambda _, x: x * math.log(x.shape[-2])),
    "size: the remainder": net(lambda _, x: x * (1 + x.shape[-1] % 5)),
    "size: the shape as numbers": net(lambda _, x: x + torch.tensor(x.shape[-2:]).sum()),
    "size: a share of the sum": net(lambda _, x: x / x.abs().sum((2, 3), keepdim=True)),
    "size: weighed by sums": net(_weighed),
    "place: halves by themselves": net(_halved, c=lambda: conv(5)),
    "place: squares by themselves": net(_in_squares, c=lambda: conv(5)),
    "place: the middle enlarged": net(_below),
    "place: distance to the middle": net(
        lambda _, x: x * (torch.arange(x.shape[-1], dtype=x.dtype) - x.shape[-1] / 2).abs()
    ),
    "place: checked by products": net(
        lambda _, x: x + torch.outer(torch.arange(x.shape[-2]), torch.arange(x.shape[-1])).to(x.dtype) % 3
    ),
    "place: an upper part": net(
        lambda _, x: torch.cat([x[..., : x.shape[-2] // 2, :] * 2, x[..., x.shape[-2] // 2 :, :]], -2)
    ),
    "place: a table of positions": net(lambda n, x: x + n.table[..., :1, : x.shape[-1]]),
    "place: the last column": net(lambda _, x: x - x[..., -1:]),
    "place: differences run on": net(lambda _, x: torch.cumsum(x - x.roll(1, -1), -1)),
    "padding: to one side or the other": net(_drawn_to_the_side),
    "padding: with the last value of all": net(
        lambda n, x: n.c(torch.cat([x, x[:, :, -1:, -1:].expand(-1, -1, x.shape[-2], 2)], -1))[..., :-2],
        c=lambda: conv(5),
    ),
    "padding: wrapped by hand": net(
        lambda n, x: n.c(torch.cat([x[..., -3:, :], x], -2))[..., 3:, :], c=lambda: conv(7)
    ),
    "padding: with means": net(
        lambda n, x: n.c(torch.cat([x.mean(-2, keepdim=True), x], -2))[..., 1:, :], c=conv
    ),
}


class _Always(nn.Module):
    """A layer in training mode, whatever it is told."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        self.layer.training = True
        return self.layer(x)
