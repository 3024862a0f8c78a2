"""A model as a chain of layers in the order they run, and what goes from each to later ones, skips included.

layer     0 --- 1 --- 2 --- 3 --- 4          crossing(1): what a cut behind layer 1 must carry,
           `------ skip ---------'           here the result of 1 and the skip of 0
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from outsize.plan.step import StepFacts, StepOp
from outsize.plan.times import Clock, host_calls, together

__all__ = ["Chain", "ChainLayer", "Stream", "chain_of"]


@dataclass(frozen=True)
class ChainLayer:
    """One layer on both ways of one micro-batch: kernels, the host that launches them, and bytes."""

    name: str
    forward_s: float
    backward_s: float
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    saved_bytes: int = 0  # that autograd keeps from forward to backward
    weights_bytes: int = 0
    state_bytes: int = 0  # weights, gradients and what the optimizer keeps
    call: int = 0  # of the module of that name, which may run several times
    weights_s: float = 0.0  # of backward, what finds gradients of weights
    split_s: float = 0.0  # that backward takes longer where these are found apart


_SUMMED = [each.name for each in fields(ChainLayer) if each.name not in ("name", "call")]


@dataclass(frozen=True)
class Stream:
    """One tensor from the layer that makes it to those that read it; its gradient goes back the same way."""

    made: int
    read: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Chain:
    """Layers of one micro-batch, and the tensors between them."""

    layers: tuple[ChainLayer, ...]
    streams: tuple[Stream, ...]
    overlaps: bool = True  # the host launches ahead of the device; on a CPU they are one

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """For each layer the bytes that a cut behind it carries forward, each tensor once."""
        steps = [0] * (len(self.layers) + 1)
        for each in self.streams:
            steps[each.made] += each.num_bytes
            steps[max(each.read)] -= each.num_bytes
        return tuple(accumulate(steps[:-1]))

    def forward_s(self, first: int, end: int) -> float:
        """Return the time of layers on the way forward."""
        return self._seconds(self._sums["forward_s"], self._sums["forward_host_s"], first, end)

    def backward_s(self, first: int, end: int) -> float:
        """Return the time of layers in backward."""
        return self._seconds(self._sums["backward_s"], self._sums["backward_host_s"], first, end)

    def later_s(self, first: int, end: int) -> tuple[float | None, float]:
        """Return what of backward finds gradients of weights, None where it is not known, and what splitting adds."""
        weights, kernels = (self._sums[name] for name in ("weights_s", "backward_s"))
        if not weights[-1]:
            return None, 0.0
        own_s = kernels[end] - kernels[first]
        share = (weights[end] - weights[first]) / own_s if own_s else 0.0
        return share * self.backward_s(first, end), self._between("split_s", first, end)

    def saved_bytes(self, first: int, end: int) -> int:
        """Return what one micro-batch keeps in these layers until backward."""
        return int(self._between("saved_bytes", first, end))

    def weights_bytes(self, first: int, end: int) -> int:
        """Return the weights of layers."""
        return int(self._between("weights_bytes", first, end))

    def state_bytes(self, first: int, end: int) -> int:
        """Return weights, gradients and optimizer state of layers."""
        return int(self._between("state_bytes", first, end))

    @cached_property
    def skips(self) -> tuple[Stream, ...]:
        """What passes over at least one layer."""
        return tuple(each for each in self.streams if max(each.read) > each.made + 1)

    def merged(self, most: int) -> Chain:
        """Return a chain of at most so many layers, neighbours joined so that all take about as long."""
        places = self.places(most)
        if len(places) + 1 >= len(self.layers):
            return self
        ends = [*places, len(self.layers)]
        owner = [bisect(places, layer) for layer in range(len(self.layers))]
        layers = []
        for first, end in zip([0, *places], ends, strict=True):
            sums: dict[str, Any] = {name: self._between(name, first, end) for name in _SUMMED}
            layers.append(replace(self.layers[first], **sums))
        streams = []
        for each in self.streams:
            read = {owner[layer] for layer in each.read} - {owner[each.made]}
            if read:
                streams.append(Stream(owner[each.made], tuple(sorted(read)), each.num_bytes))
        return Chain(tuple(layers), tuple(streams), self.overlaps)

    def places(self, most: int) -> list[int]:
        """Return the layers that a cut may come before: all of a short chain, else fewer than `most`, even in time."""
        length = len(self.layers)
        if length <= most:
            return list(range(1, length))
        whole_s = self.forward_s(0, length) + self.backward_s(0, length)
        found, reached = [], 0
        for place in range(1, length):
            now_s = self.forward_s(0, place) + self.backward_s(0, place)
            share = now_s / whole_s if whole_s else place / length
            if int(share * most) > reached:
                reached = int(share * most)
                found.append(place)
        return found

    def messages(self, owner: Sequence[int]) -> dict[tuple[int, int], int]:
        """Return the bytes that go from part to part, straight, where `owner` names each layer's part."""
        found: dict[tuple[int, int], int] = {}
        for each in self.streams:
            for part in {owner[layer] for layer in each.read} - {owner[each.made]}:
                way = owner[each.made], part
                found[way] = found.get(way, 0) + each.num_bytes
        return found

    @cached_property
    def _sums(self) -> dict[str, list[float]]:
        return {
            name: list(accumulate((getattr(each, name) for each in self.layers), initial=0))
            for name in _SUMMED
        }

    def _between(self, name: str, first: int, end: int) -> float:
        return self._sums[name][end] - self._sums[name][first]

    def _seconds(self, kernels: list[float], host: list[float], first: int, end: int) -> float:
        return together(kernels[end] - kernels[first], host[end] - host[first], overlaps=self.overlaps)


def chain_of(step: StepFacts, clock: Clock) -> Chain:
    """Return the layers of a traced step of one micro-batch, in the order in which forward calls them.

    What runs outside of all modules belongs to the layer before it; the optimizer's step to none.
    """
    names, place = _layers(step.ops)
    kernels, host = [(0.0, 0.0)] * len(names), [(0.0, 0.0)] * len(names)
    apart = [(0.0, 0.0)] * len(names)
    for op, layer in place.items():
        apart[layer] = _plus(apart[layer], clock.later_s(op))
        kernels[layer] = _added(kernels[layer], clock.op_s(op), backward=op.backward)
        host[layer] = _added(host[layer], clock.rates.host_op_s * host_calls(op), backward=op.backward)
    made, read = _uses(place)
    saved, weights = [0] * len(names), [0] * len(names)
    sizes = {each.index: each.size_bytes for each in step.storages}
    at = [layer for op, layer in place.items() if not op.backward]
    for storage, packed in {each.storage: each.packed for each in reversed(step.saved)}.items():
        if storage in made:  # weights and the picture itself are not kept by autograd alone
            saved[at[min(packed, len(at) - 1)]] += sizes[storage]
    roles = {each.index: each.role for each in step.storages}
    for storage, readers in read.items():
        if roles[storage] == "weight":
            weights[min(readers)] += sizes[storage]
    kept = sum(each.size_bytes for each in step.storages if each.role == "optimizer") / max(1, sum(weights))
    layers = tuple(
        ChainLayer(name, *ways, *hosts, saved[i], weights[i], int(weights[i] * (2 + kept)), call, *apart[i])
        for i, ((name, call), ways, hosts) in enumerate(zip(names, kernels, host, strict=True))
    )
    streams = tuple(
        Stream(made[storage], tuple(sorted(later)), sizes[storage])
        for storage, readers in read.items()
        if storage in made and (later := {each for each in readers if each > made[storage]})
    )
    return Chain(layers, streams, clock.overlaps)


def _added(ways: tuple[float, float], seconds: float, *, backward: bool) -> tuple[float, float]:
    forward_s, backward_s = ways
    return (forward_s, backward_s + seconds) if backward else (forward_s + seconds, backward_s)


def _plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _layers(ops: Sequence[StepOp]) -> tuple[list[tuple[str, int]], dict[StepOp, int]]:
    """Return the names and calls of layers, and the layer of each operation of forward and backward."""
    numbers: dict[tuple[str, int], int] = {}
    place: dict[StepOp, int] = {}
    last = 0
    end = max((number for number, op in enumerate(ops) if op.backward), default=len(ops))
    for op in ops[: end + 1]:  # what follows is the optimizer
        if not op.backward and op.layer[0]:
            last = numbers.setdefault(op.layer, len(numbers))
        elif op.backward:
            last = numbers.get(op.layer, last)
        place[op] = last
    return [*numbers] or [("model", 0)], place


def _uses(place: dict[StepOp, int]) -> tuple[dict[int, int], dict[int, set[int]]]:
    """Return the layer that makes each storage of forward, and those that read it there."""
    made: dict[int, int] = {}
    read: dict[int, set[int]] = {}
    for op, layer in place.items():
        if op.backward:
            continue
        for storage in op.inputs:
            read.setdefault(storage, set()).add(layer)
        for storage in op.outputs:
            made.setdefault(storage, layer)
    return made, read
