"""Blocks that do what a block that runs again must not do, or may do, by the kind of thing; nets of four of each."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16
COUNTS = {"calls": 0}
NUM_CALLS = 0
GENERATOR = torch.Generator()


class Block(nn.Module):
    """A residual block: a norm, wider, something odd, narrower."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.prepare()

    def prepare(self) -> None:
        """Set what it needs besides."""

    def odd(self, h: Tensor) -> Tensor:
        """Do it."""
        return h

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.odd(F.gelu(self.up(self.norm(x)))).tanh())


class Net(nn.Module):
    """Four blocks between two layers."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.last(x)
        return found


def by(
    odd: Callable[[Any, Tensor], Tensor], prepare: Callable[[Any], object] = lambda _: None
) -> Callable[[], Net]:
    """Return what makes a net of blocks that do this."""
    kind = type("Odd", (Block,), {"odd": odd, "prepare": prepare})
    return lambda: Net(kind)


def _put(self: Any, **named: Any) -> None:
    for name, value in named.items():
        setattr(self, name, value)


# ---- random numbers that torch's own generators know nothing of


def _draws_branch(_: Any, h: Tensor) -> Tensor:
    return h * 2 if random.random() < 0.5 else h.sin()


def _draws_shuffle(_: Any, h: Tensor) -> Tensor:
    order = list(range(h.shape[-1]))
    random.shuffle(order)
    return h[..., order]


DRAWS = {
    "a generator of its own": by(
        lambda self, h: h + torch.randn(h.shape, generator=self.own),
        lambda self: _put(self, own=torch.Generator().manual_seed(3)),
    ),
    "a generator of the file": by(lambda _, h: h + torch.rand(h.shape, generator=GENERATOR)),
    "a mask by its own generator": by(
        lambda self, h: h * torch.empty_like(h).bernoulli_(0.7, generator=self.own),
        lambda self: _put(self, own=torch.Generator().manual_seed(4)),
    ),
    "an order by its own generator": by(
        lambda self, h: h[..., torch.randperm(h.shape[-1], generator=self.own)],
        lambda self: _put(self, own=torch.Generator().manual_seed(5)),
    ),
    "Python's random": by(lambda _, h: h * (1 + random.random())),
    "a branch by Python's random": by(_draws_branch),
    "an order by Python's random": by(_draws_shuffle),
    "a random.Random of its own": by(
        lambda self, h: h * self.own.uniform(0.5, 2), lambda self: _put(self, own=random.Random(2))
    ),
    "numpy's random": by(lambda _, h: h + torch.from_numpy(np.random.rand(*h.shape)).float()),  # noqa: NPY002
    "a numpy generator of its own": by(
        lambda self, h: h * float(self.own.random()), lambda self: _put(self, own=np.random.default_rng(1))
    ),
    "torch's dropout": by(lambda _, h: F.dropout(h, 0.3)),
    "torch's rand": by(lambda _, h: h * torch.rand_like(h)),
    "torch's bernoulli in place": by(lambda _, h: h * torch.empty_like(h).bernoulli_(0.5)),
    "torch's gumbel softmax": by(lambda _, h: F.gumbel_softmax(h, dim=-1)),
    "torch's rrelu": by(lambda _, h: F.rrelu(h, training=True)),
}

# ---- what is kept from one call to the next


def _counts_class(self: Any, h: Tensor) -> Tensor:
    type(self).total = getattr(type(self), "total", 0) + 1
    return h * (1 + type(self).total / 10)


def _counts_file(_: Any, h: Tensor) -> Tensor:
    global NUM_CALLS  # noqa: PLW0603
    NUM_CALLS += 1
    return h * (1 + NUM_CALLS / 10)


def _counts_in_dict(_: Any, h: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    return h / COUNTS["calls"]


def _around() -> Net:
    count = 0

    def odd(_: Any, h: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return h * (1 + count / 10)

    return by(odd)()


def _counts(self: Any, h: Tensor) -> Tensor:
    self.count += 1
    return h * self.count


def _remembers(self: Any, h: Tensor) -> Tensor:
    found = h if self.before is None else h + 0.5 * self.before
    self.before = h.detach()
    return found


def _mean_in_place(self: Any, h: Tensor) -> Tensor:
    self.mean.mul_(0.9).add_(0.1 * h.detach().mean())
    return h * (1 + self.mean)


def _mean_through_data(self: Any, h: Tensor) -> Tensor:
    self.mean.data.mul_(0.9).add_(0.1 * h.detach().mean())
    return h * (1 + self.mean)


def _mean_replaced(self: Any, h: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()
    return h * (1 + self.mean)


def _mean_in_tuple(self: Any, h: Tensor) -> Tensor:
    self.pair[0].mul_(0.9).add_(0.1 * h.detach().mean())
    return h * (1 + self.pair[0])


def _array(self: Any, h: Tensor) -> Tensor:
    self.array += 1
    return h * float(self.array.sum())


def _history(self: Any, h: Tensor) -> Tensor:
    self.history.append(float(len(self.history)))
    return h * (1 + sum(self.history) / 10)


def _in_object(self: Any, h: Tensor) -> Tensor:
    self.object.count += 1
    return h * self.object.count


@dataclasses.dataclass
class _Noted:
    count: int = 0
    seen: list[Tensor] = dataclasses.field(default_factory=list)


def _hidden_module(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        self.hidden[0].weight.mul_(0.9).add_(0.1)
    return h * self.hidden[0].weight.mean().detach()


KEEPS = {
    "an attribute": by(_counts, lambda self: _put(self, count=0)),
    "a class": by(_counts_class),
    "a variable of the file": by(_counts_file),
    "a dict of the file": by(_counts_in_dict),
    "a variable around": _around,
    "an iterator": by(
        lambda self, h: h * (1 + next(self.steps) / 10), lambda self: _put(self, steps=itertools.count())
    ),
    "a deque": by(_history, lambda self: _put(self, history=collections.deque(maxlen=5))),
    "a list": by(_history, lambda self: _put(self, history=[])),
    "a namespace": by(_in_object, lambda self: _put(self, object=types.SimpleNamespace(count=0))),
    "a dataclass": by(_in_object, lambda self: _put(self, object=_Noted())),
    "an array": by(_array, lambda self: _put(self, array=np.zeros(2))),
    "what it saw last": by(_remembers, lambda self: _put(self, before=None)),
    "a tensor in place": by(_mean_in_place, lambda self: _put(self, mean=torch.zeros(()))),
    "a tensor through data": by(_mean_through_data, lambda self: _put(self, mean=torch.zeros(()))),
    "a tensor replaced": by(_mean_replaced, lambda self: _put(self, mean=torch.zeros(()))),
    "a tensor in a tuple": by(_mean_in_tuple, lambda self: _put(self, pair=(torch.zeros(()), 1))),
    "a buffer in place": by(_mean_in_place, lambda self: self.register_buffer("mean", torch.zeros(()))),
    "a buffer replaced": by(_mean_replaced, lambda self: self.register_buffer("mean", torch.zeros(()))),
    "a module in a list": by(_hidden_module, lambda self: _put(self, hidden=[nn.Linear(2, 2)])),
}

# ---- containers that are given


class _Filling(nn.Module):
    """A net that gives its blocks a container, and reads it afterwards."""

    def __init__(
        self, make: Callable[[], Any], fill: Callable[[Any, Tensor], Any], read: Callable[[Any], Any]
    ) -> None:
        super().__init__()
        self.make, self.fill, self.read = make, fill, read
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(_Fills() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x, held = self.first(x), self.make()
        for block in self.blocks:
            x = block(x, held=held, fill=self.fill)
        found: Tensor = self.last(x)
        for each in self.read(held):
            found = found + each.mean()
        return found


class _Fills(Block):
    def forward(self, x: Tensor, held: Any, fill: Any) -> Tensor:  # type: ignore[override]
        h = F.gelu(self.up(self.norm(x)))
        return x + self.down(h.tanh()) * fill(held, h.mean(-1, keepdim=True))


def _fill_list(held: Any, h: Tensor) -> float:
    held.append(h)
    return float(len(held))


def _fill_dict(held: Any, h: Tensor) -> float:
    held[len(held)] = h
    return float(len(held))


def _fill_nested(held: Any, h: Tensor) -> float:
    held["found"].append((h, len(held["found"])))
    return 1.0


def _fill_object(held: Any, h: Tensor) -> float:
    held.count += 1
    held.seen.append(h)
    return float(held.count)


def _sum_up(held: Any, h: Tensor) -> Any:
    held[0] = held[0] + h
    return held[0].sigmoid()


GIVEN = {
    "a list": lambda: _Filling(list, _fill_list, list),
    "a dict": lambda: _Filling(dict, _fill_dict, lambda held: held.values()),
    "a dict of lists": lambda: _Filling(
        lambda: {"found": []}, _fill_nested, lambda held: [each for each, _ in held["found"]]
    ),
    "a deque": lambda: _Filling(collections.deque, _fill_list, list),
    "a dataclass": lambda: _Filling(_Noted, _fill_object, lambda held: held.seen),
    "a list that is read and written": lambda: _Filling(lambda: [torch.zeros(())], _sum_up, list),
}

# ---- hooks


def _hooked(set_hooks: Callable[[Net], object]) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(Block)
        set_hooks(net)
        return net

    return make


def _on_inner(kind: str, odd: Callable[[Any], Any]) -> Callable[[], Net]:
    def set_hooks(net: Net) -> None:
        net.calls = []  # type: ignore[assignment]

        def hook(module: nn.Module, *given: Any) -> Any:
            net.calls.append(len(net.calls))  # type: ignore[operator]
            return odd(given[-1])

        for block in net.blocks:
            getattr(block.up, kind)(hook)

    return _hooked(set_hooks)


def _weight_normed() -> Net:
    net = Net(Block)
    for block in net.blocks:
        torch.nn.utils.parametrizations.weight_norm(block.up)
        torch.nn.utils.parametrizations.spectral_norm(block.down)
    return net


def _old_spectral_normed() -> Net:
    net = Net(Block)
    for block in net.blocks:
        torch.nn.utils.spectral_norm(block.up)
    return net


HOOKS = {
    "a forward hook inside": _on_inner("register_forward_hook", lambda _: None),
    "a forward hook that changes": _on_inner("register_forward_hook", lambda given: given * 1.5),
    "a pre-hook inside": _on_inner("register_forward_pre_hook", lambda _: None),
    "a backward hook inside": _on_inner("register_full_backward_hook", lambda _: None),
    "weight and spectral norm": _weight_normed,
    "the old spectral norm": _old_spectral_normed,
    "a hook on a tensor": by(lambda _, h: (h.register_hook(lambda grad: 2 * grad), h)[1]),
}

# ---- other things that forwards do


class _Momentum(nn.Module):
    """A twin of the first layer follows it, and a queue of what it made is in a buffer; looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.twin = Net(Block), nn.Linear(8, WIDTH)
        for each in self.twin.parameters():
            each.requires_grad_(False)
        self.register_buffer("queue", torch.zeros(8, WIDTH))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))
        self.seen, self.mean = 0, torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, own in zip(self.twin.parameters(), self.net.first.parameters(), strict=True):
                mine.data = mine.data * 0.9 + own.data * 0.1
            key = self.twin(x).mean((0, 1))
            self.queue[int(self.place.item())] = key
            self.place.copy_((self.place + 1) % 8)
            self.mean.lerp_(key, 0.5)
            self.seen += 1
        found: Tensor = self.net(x) * (1 + self.queue.mean() + self.mean.mean())
        return found


def _rows(self: Any, h: Tensor) -> Tensor:
    found: Tensor = self.rows(h[:, :4])[0].mean(1, keepdim=True)
    return h + found


def _penalty(_: Any, h: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(h.square().sum(), h, create_graph=True)
    return h + 0.1 * gradient


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.scale = float(h.detach().abs().max())
        ctx.save_for_backward(h)
        return h * h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (h,) = ctx.saved_tensors
        return 2 * h * grad + 0 * ctx.scale


class _Tied(Net):
    """Calls one block four times."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(4):
            x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = block(x)
        found: Tensor = self.last(x)
        return found


def _counts_batches(self: Any, h: Tensor) -> Tensor:
    found: Tensor = self.batch_norm(h.transpose(1, 2)).transpose(1, 2)
    return found


def _chosen(_: Any, h: Tensor) -> Tensor:
    best = h.argmax(-1, keepdim=True)
    return h + h.gather(-1, best)


def _lazily(self: Any, h: Tensor) -> Tensor:
    if self.ramp is None:
        self.ramp = torch.linspace(0, 1, h.shape[-1])
    return h * self.ramp


def _calms(_: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        scale = h.abs().mean()
    return h / scale.clamp(min=0.1)


OTHERS = {
    "momentum and a queue": _Momentum,
    "an LSTM": by(_rows, lambda self: _put(self, rows=nn.LSTM(48, 48, batch_first=True))),
    "a GRU": by(_rows, lambda self: _put(self, rows=nn.GRU(48, 48, batch_first=True))),
    "a gradient inside": by(_penalty),
    "an operation of one's own": by(lambda _, h: _Own.apply(h)),
    "one block many times": lambda: _Tied(Block),
    "batch norm": by(_counts_batches, lambda self: _put(self, batch_norm=nn.BatchNorm1d(48))),
    "batch norm by a running average": by(
        _counts_batches, lambda self: _put(self, batch_norm=nn.BatchNorm1d(48, momentum=None))
    ),
    "a choice by values": by(_chosen),
    "a constant that is made once": by(_lazily, lambda self: _put(self, ramp=None)),
    "numbers without gradient": by(_calms),
    "a checkpoint of its own": by(lambda _, h: checkpoint(torch.sin, h, use_reentrant=False)),
    "in place": by(lambda _, h: h.mul(2).add_(1).sigmoid_()),
    "complex numbers": by(lambda _, h: torch.fft.irfft(torch.fft.rfft(h) * 2j, n=h.shape[-1])),
    "a cast": by(lambda _, h: h.to(torch.bfloat16).float()),
}

ODD = {
    f"{group}: {name}": make
    for group, named in (
        ("draws", DRAWS), ("keeps", KEEPS), ("given", GIVEN), ("hooks", HOOKS), ("others", OTHERS),
    )
    for name, make in named.items()
}  # fmt: skip
