"""U-Nets of published benchmarks as chains of layers, from their sizes alone.

    level 0   cell, stash ------------------------------ up, join, cell, head
    level 1     pool, cell, stash -------------- up, join, cell
    bottom        pool, cell

A cell is `convs` times a 3 x 3 convolution, dropout, norm and activation;
a cut may follow any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from outsize.plan.partition import Chain, ChainLayer, Stream
from outsize.plan.step import StepOp
from outsize.plan.times import Clock, host_calls

__all__ = ["FlatUNet"]

_FLOAT = 4


@dataclass(frozen=True)
class FlatUNet:
    """A U-Net of `depth` poolings, laid out flat."""

    convs: int
    channels: int
    depth: int
    side_px: int
    in_channels: int = 3
    num_classes: int = 1
    optimizer_copies: int = 0  # of weights, that the optimizer keeps: Adam 2

    @property
    def num_weights(self) -> int:
        """How many weights it has: all of them in convolutions."""
        return sum(each.weights for each in self._parts())

    def chain(self, batch: int, clock: Clock) -> Chain:
        """Return its layers for a micro-batch, as a GPU would run them in float32."""
        layers: list[ChainLayer] = []
        streams: list[Stream] = []
        stashed: list[tuple[int, int]] = []
        parts = self._parts()
        for number, part in enumerate(parts):
            forward, backward = part.ops(batch)
            state = part.weights * _FLOAT * (2 + self.optimizer_copies)
            layers.append(
                ChainLayer(
                    f"{number}.{part.kind}",
                    sum(map(clock.op_s, forward)),
                    sum(map(clock.op_s, backward)),
                    clock.rates.host_op_s * sum(map(host_calls, forward)),
                    clock.rates.host_op_s * sum(map(host_calls, backward)),
                    part.saved_bytes(batch),
                    part.weights * _FLOAT,
                    state,
                )
            )
            if part.kind == "stash":
                stashed.append((number, part.out_bytes(batch)))
            if part.kind == "join":
                made, num_bytes = stashed.pop()
                streams.append(Stream(made, (number,), num_bytes))
            if number + 1 < len(parts):
                streams.append(Stream(number, (number + 1,), part.out_bytes(batch)))
        return Chain(tuple(layers), tuple(streams), clock.overlaps)

    def _parts(self) -> list[_FlatLayer]:
        found: list[_FlatLayer] = []
        side, width = self.side_px, self.channels
        inward = self.in_channels
        for level in range(self.depth):
            out = width * 2**level
            found += self._cell(inward, out, out, side)
            found.append(_FlatLayer("stash", out, out, side))
            side //= 2
            found.append(_FlatLayer("pool", out, out, side))
            inward = out
        found += self._cell(inward, 2 * inward, inward, side)
        for level in reversed(range(self.depth)):
            skip, out = width * 2**level, max(1, width * 2**level // 2)
            side = self.side_px // 2**level
            found.append(_FlatLayer("up", skip, skip, side))
            found.append(_FlatLayer("join", 2 * skip, 2 * skip, side))
            found += self._cell(2 * skip, out, out, side)
        return [*found, _FlatLayer("head", max(1, width // 2), self.num_classes, side, kernel=1)]

    def _cell(self, inward: int, between: int, out: int, side: int) -> list[_FlatLayer]:
        widths = [inward, *[between] * (self.convs - 1), out]
        found = []
        for one, other in pairwise(widths):
            found.append(_FlatLayer("conv", one, other, side, kernel=3))
            found += [_FlatLayer(kind, other, other, side) for kind in ("dropout", "norm", "act")]
        return found


# What each kind of layer reads and writes on both ways, as multiples of its result; torch's name for it; and what
# autograd keeps. Pooling reads four times what it writes, doubling a quarter; norms keep their input, activations their
# result, which they write over that of the norm.
_KINDS: dict[str, tuple[str, float, str, float, float]] = {
    "dropout": ("mul", 2.0, "mul", 2.0, 0.0),
    "norm": ("native_batch_norm", 2.0, "native_batch_norm_backward", 3.0, 1.0),
    "act": ("leaky_relu_", 2.0, "leaky_relu_backward", 3.0, 1.0),
    "stash": ("view", 0.0, "add", 3.0, 0.0),  # the gradient of the skip is added to that of the way down
    "pool": ("max_pool2d_with_indices", 7.0, "max_pool2d_with_indices_backward", 7.0, 3.0),
    "up": ("upsample_nearest2d", 1.25, "upsample_nearest2d_backward", 1.25, 0.0),
    "join": ("cat", 2.0, "copy", 2.0, 1.0),
}


@dataclass(frozen=True)
class _FlatLayer:
    kind: str
    inward: int
    out: int
    side: int
    kernel: int = 0

    @property
    def weights(self) -> int:
        return self.kernel**2 * self.inward * self.out

    def out_bytes(self, batch: int) -> int:
        return self.out * self.side**2 * batch * _FLOAT

    def saved_bytes(self, batch: int) -> int:
        return 0 if self.kernel else int(_KINDS[self.kind][4] * self.out_bytes(batch))

    def ops(self, batch: int) -> tuple[list[StepOp], list[StepOp]]:
        if not self.kernel:
            ahead, moved, back, moved_back, _ = _KINDS[self.kind]
            size = self.out_bytes(batch)
            return [_op(ahead, moved * size)], [_op(back, moved_back * size, backward=True)]
        flops = 2 * self.weights * self.side**2 * batch
        read = self.inward * self.side**2 * batch * _FLOAT
        moved_bytes = read + self.out_bytes(batch) + self.weights * _FLOAT
        forward = _op("convolution", moved_bytes, flops, depth=self.inward)
        backward = _op("convolution_backward", moved_bytes + read, 2 * flops, backward=True)
        return [forward], [backward]


def _op(kind: str, moved_bytes: float, flops: int = 0, *, depth: int = 0, backward: bool = False) -> StepOp:
    return StepOp(0, kind, "", 0, backward, (), (), flops, int(moved_bytes), "float32", depth=depth)
