"""What can be moved, and at which packings and unpackings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from tests.plan.lines import line
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.measure.tracing.step import trace_step
from outsize.measure.where import Where
from outsize.plan.cost import StepCost
from outsize.plan.memory.swap import find_points
from outsize.plan.step import StepFacts
from outsize.plan.ways.blocks import list_blocks
from outsize.strategies.blocks.checkpointing import checkpointed

EVEN = line([10] * 5, [10] * 4, [10] * 4)


def _movable(facts: StepFacts) -> dict[int, tuple[int, int, int]]:
    found = find_points(StepCost(facts), least_bytes=1).movable
    return {each.storage: (each.packed, each.free, each.need) for each in found}


def test_storages_can_leave_when_forward_has_done_with_them() -> None:
    # the last one is held by the last layer until backward begins
    assert _movable(EVEN) == {0: (1, 2, 8), 1: (2, 3, 7), 2: (3, 4, 6), 3: (4, 5, 5)}
    points = find_points(StepCost(EVEN), least_bytes=1)
    assert points.packings == {index: (f"layer{index}", 0, 0) for index in (1, 2, 3, 4)}
    assert points.unpackings == {9 - index: (f"layer{index}", 0, 0) for index in (4, 3, 2, 1)}


def test_a_skip_that_forward_reads_again_stays_until_then() -> None:
    ops = list(EVEN.ops)
    ops[3] = replace(ops[3], inputs=(2, 0))
    assert _movable(replace(EVEN, ops=tuple(ops)))[0] == (1, 4, 8)


def test_what_is_small_changed_lasting_or_held_by_others_is_not_moved() -> None:
    assert find_points(StepCost(EVEN)).movable == ()  # all of it below the least size
    ops = list(EVEN.ops)
    ops[3] = replace(ops[3], outputs=(3, 1))
    assert 1 not in _movable(replace(EVEN, ops=tuple(ops)))  # written to after it was saved
    for change in ({"role": "input"}, {"role": "weight"}, {"dies": 9}):
        storages = list(EVEN.storages)
        storages[1] = replace(storages[1], **change)  # type: ignore[arg-type]
        assert 1 not in _movable(replace(EVEN, storages=tuple(storages)))


def test_keys_of_blocks_are_those_that_torch_packs_and_unpacks() -> None:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        return model(images).square().mean()  # type: ignore[no-any-return]

    model = nn.Sequential(*(nn.Sequential(layer(), layer()) for _ in range(4)))
    cost = StepCost(trace_step(model, (2, 4, 16, 16), loss=loss, device="cpu"))
    blocks = next(each for each in list_blocks(cost, lambda op: 1.0) if "1" in each.paths)

    def again(model: nn.Module, images: Tensor) -> Tensor:
        with checkpointed(model, blocks.paths):
            return loss(model, images)

    points = find_points(StepCost(trace_step(model, (2, 4, 16, 16), loss=again, device="cpu")), least_bytes=1)
    assert ("1", 0, 0) in points.packings.values()
    inside = tuple(f"{path}." for path in blocks.paths)
    keys = [*points.packings.values(), *points.unpackings.values()]
    assert not any(path.startswith(inside) for path, _, _ in keys)
    parameters = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    packed: dict[tuple[str, int, int], int] = {}
    unpacked: list[tuple[str, int, int]] = []
    ordinals: Counter[tuple[str, int]] = Counter()
    with Where(model) as where, checkpointed(model, blocks.paths):

        def pack(tensor: Tensor) -> tuple[Tensor, tuple[str, int, int] | None]:
            if tensor.untyped_storage().data_ptr() in parameters:
                return tensor, None
            key = (*where.here, ordinals[where.here])
            ordinals[where.here] += 1
            packed[key] = tensor.untyped_storage().nbytes()
            return tensor, key

        def unpack(pair: tuple[Tensor, tuple[str, int, int] | None]) -> Tensor:
            if pair[1] is not None:
                unpacked.append(pair[1])
            return pair[0]

        with saved_tensors_hooks(pack, unpack):
            value = loss(model, torch.rand(2, 4, 16, 16))
        value.backward()  # type: ignore[no-untyped-call]
    assert points.movable
    assert all(abs(packed[each.key] - each.size_bytes) < 512 for each in points.movable)
    planned = list(points.packings.values())
    assert planned == [key for key in packed if key in planned]
    planned = list(points.unpackings.values())
    assert planned == [key for key in dict.fromkeys(unpacked) if key in planned]
