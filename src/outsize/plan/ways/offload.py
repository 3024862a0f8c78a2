"""What a step needs and takes where weights, gradients and the optimizer's state are in host memory.

    device   a block's weights, its gradients, and those on their way out: three times the largest, beside activations
    link     weights in twice (forward and backward), gradients out once
    host     the optimizer goes over weights, gradients and state

Weights come right before they are used, and compute waits for them: for a single process FSDP2 fetches nothing ahead
(seen in torch 2.11). Gradients leave beside compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from outsize.plan.plan import Offload
from outsize.plan.search import Link
from outsize.plan.step import StepFacts, Storage, allocated_bytes
from outsize.plan.ways.blocks import outward

_LARGEST_SHARE = 1 / 8  # of all weights, that one block may hold; a single module may hold more
_ON_DEVICE = 3  # times the largest block
# An optimizer that is not fused goes over its bytes, and over what it makes in between, about so often.
_PASSES = 7
HOST_BYTES_PER_S = 20e9  # of elementwise operations on a host with a GPU; a guess on the slow side
_STATES = ("weight", "gradient", "optimizer")


@dataclass(frozen=True)
class Offloaded:
    """A step whose weights are on the host: its setting, what is left of it on the device, and what it takes longer."""

    setting: Offload
    facts: StepFacts  # without the optimizer; what comes and goes of weights and gradients is one storage
    extra_s: float  # over the operations that are left


def offloaded(
    facts: StepFacts,
    weights: Mapping[str, int],
    link: Link,
    *,
    backward_s: float = 0.0,
    host_bytes_per_s: float = HOST_BYTES_PER_S,
) -> Offloaded:
    """Return a step as it is with its weights on the host; `weights` are bytes by name of those that can go there.

    `backward_s` is the time of backward on the device, in which gradients can leave.
    """
    blocks = choose_blocks(weights, facts.modules)
    leaving = _leaving(facts, weights.values())
    largest_bytes = _largest_bytes(weights, blocks)
    state_bytes = sum(each.size_bytes for each in leaving if each.role == "optimizer" and each.born < 0)
    weight_bytes = sum(weights.values())
    pinned_bytes = sum(map(_pinned, weights.values()))
    if not facts.training:
        left = _without(facts, leaving, largest_bytes)
        return Offloaded(Offload(blocks, pinned_bytes, largest_bytes), left, link.in_s(weight_bytes))
    extra_s = 2 * link.in_s(weight_bytes) + max(0.0, link.out_s(weight_bytes) - backward_s)
    extra_s += _PASSES * (2 * weight_bytes + state_bytes) / host_bytes_per_s
    left = _without(facts, leaving, _ON_DEVICE * largest_bytes)
    return Offloaded(
        Offload(blocks, 2 * pinned_bytes + state_bytes, _ON_DEVICE * largest_bytes), left, extra_s
    )


def choose_blocks(weights: Mapping[str, int], called: Collection[str]) -> tuple[str, ...]:
    """Return the outermost modules that hold few enough weights, or cannot be cut further; all of them are called."""
    known = [path for path in called if path]
    held = _held(weights)
    parents = {outer for path in known for outer in outward(path)[1:]}
    most_bytes = _LARGEST_SHARE * sum(weights.values())
    small = {path for path in known if held[path] and (held[path] <= most_bytes or path not in parents)}
    return tuple(
        path for path in known if path in small and not any(each in small for each in outward(path)[1:])
    )


def _held(weights: Mapping[str, int]) -> Counter[str]:
    """Return the bytes that each module holds, by its path."""
    held: Counter[str] = Counter()
    for name, size_bytes in weights.items():
        for path in outward(name)[1:]:
            held[path] += size_bytes
    return held


def _largest_bytes(weights: Mapping[str, int], blocks: Iterable[str]) -> int:
    """Return the most that comes at once: a block, or the rest, which comes together."""
    held = _held(weights)
    sizes = [held[path] for path in blocks]
    return max((*sizes, held[""] - sum(sizes)))


def _leaving(facts: StepFacts, sizes: Iterable[int]) -> list[Storage]:
    """Return the storages of weights that go, of their gradients and state, and of casts of them, found by size."""
    going = {allocated_bytes(each) for each in sizes}
    found = [each for each in facts.storages if each.role in _STATES and each.size_bytes in going]
    weights = {each.index for each in found if each.role == "weight"}
    casts = {
        index
        for op in facts.ops
        if op.kind == "_to_copy" and op.inputs and weights.issuperset(op.inputs)
        for index in op.outputs
    }
    return [*found, *(each for each in facts.storages if each.index in casts)]


def _without(facts: StepFacts, leaving: Iterable[Storage], coming_bytes: int) -> StepFacts:
    """Return the step without storages and optimizer, and with so many bytes that are there all the time."""
    gone = {each.index for each in leaving}
    end = next((op.index + 1 for op in reversed(facts.ops) if op.backward), len(facts.ops))
    storages = [
        replace(each, size_bytes=0 if each.index in gone else each.size_bytes, dies=min(each.dies, end))
        for each in facts.storages
        if each.born < end
    ]
    # the last index is the next one: others are looked up by it
    most = max((each.index for each in facts.storages), default=-1)
    coming = Storage(most + 1, allocated_bytes(coming_bytes), -1, end, "weight")
    saved = tuple(each for each in facts.saved if each.storage not in gone)
    return replace(facts, ops=facts.ops[:end], storages=(*storages, coming), saved=saved)


def _pinned(num_bytes: int) -> int:
    """Return what torch's page-locked memory takes: a power of two."""
    return 1 << max(0, num_bytes - 1).bit_length()
