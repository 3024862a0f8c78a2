"""Tensors that were moved out come back bit for bit, at any schedule and under any delay, and nothing stays behind."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.errors import ModelError
from outsize.plan.step import Key
from outsize.strategies.swap.move import MovedStorage, Mover, Trip
from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.schedule import Eager, SwapSchedule
from outsize.strategies.swap.streams import Copy, Mark, ThreadStreams, Way, _ThreadMark

_CPU = torch.device("cpu")
_ON_DEMAND = SwapSchedule({}, {})
MIB = 2**20


def _mover(times: SwapSchedule | Eager = _ON_DEMAND, *, size_bytes: int = MIB, **delays: Any) -> Mover:
    return Mover(_CPU, times, PinnedPool(_CPU, size_bytes), streams=ThreadStreams(**delays))


@pytest.fixture
def mover() -> Iterator[Mover]:
    with _mover() as found:
        yield found


def numbered(number: int) -> Key:
    return ("layer", 0, number)


def _storage(tensor: Tensor) -> weakref.ref[Any]:
    return weakref.ref(tensor.untyped_storage())


# ---- one tensor


def _base() -> Tensor:
    return torch.arange(60, dtype=torch.float32)


_TENSORS: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.randn(7, 3),
    "bf16": lambda: torch.randn(5, 5).bfloat16(),
    "int64": lambda: torch.randint(-(2**62), 2**62, (9,)),
    "bool": lambda: torch.rand(11) > 0.5,
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "nan": lambda: torch.tensor([float("nan"), -0.0, float("inf")]),
    "scalar": lambda: torch.tensor(3.5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "strided": lambda: _base()[::3],
    "transposed": lambda: _base().view(6, 10).t(),
    "offset": lambda: _base()[7:29],
    "expanded": lambda: _base()[5:6].expand(4, 8),
}


@pytest.mark.parametrize("make", _TENSORS.values(), ids=_TENSORS.keys())
def test_bytes_come_back(mover: Mover, make: Callable[[], Tensor]) -> None:
    tensor = make()
    expected, stride, offset = tensor.clone(), tensor.stride(), tensor.storage_offset()
    num_bytes, alive = tensor.untyped_storage().nbytes(), _storage(tensor)
    trip = mover.begin_forward()
    moved = trip.take(numbered(0), tensor)
    del tensor
    assert alive() is not None
    trip.end_forward()
    assert alive() is None
    assert moved.is_away
    back = moved.back()
    assert back.dtype == expected.dtype
    assert (back.stride(), back.storage_offset()) == (stride, offset)
    assert back.untyped_storage().nbytes() == num_bytes
    assert torch.equal(
        back.contiguous().reshape(-1).view(torch.uint8), expected.contiguous().reshape(-1).view(torch.uint8)
    )
    assert moved.back() is back


def test_other_views_find_their_bytes_in_what_came_back(mover: Mover) -> None:
    base = _base()
    trip = mover.begin_forward()
    moved = trip.take(numbered(0), base[10:20])
    trip.end_forward()
    back = moved.back()
    assert torch.equal(back.as_strided((60,), (1,), 0), base)
    assert back.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 4),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.arange(7, dtype=torch.uint8)[:4].view(torch.float32),
        torch.empty(3, device="meta"),
    ],
    ids=["no bytes", "conjugated", "sparse", "odd bytes", "other device"],
)
def test_what_is_not_plain_memory_stays_and_is_counted(mover: Mover, tensor: Tensor) -> None:
    trip = mover.begin_forward()
    moved = trip.take(numbered(0), tensor)
    trip.end_forward()
    assert moved.back().shape == tensor.shape
    assert not moved.is_away
    counted = mover.counters()
    assert (counted.num_resident, counted.num_out, mover.pool.most_bytes) == (1, 0, 0)


def test_what_was_not_released_yet_is_given_as_it_is(mover: Mover) -> None:
    tensor = _base()
    moved = mover.begin_forward().take(numbered(0), tensor)
    assert moved.back().data_ptr() == tensor.data_ptr()
    assert mover.counters().num_in == 0


# ---- order


class _Log(ThreadStreams):
    """Writes down what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def copy(self, way: Way, target: Tensor, source: Tensor, after: Any, *, timed: bool) -> Copy:
        self.lines.append(f"{way} {source.numel()}")
        return super().copy(way, target, source, after, timed=timed)

    def wait(self, mark: Mark, *, timed: bool) -> tuple[Mark, Mark] | None:
        self.lines.append("wait")
        return super().wait(mark, timed=timed)


def _walk(times: SwapSchedule | Eager) -> list[str]:
    """Take four tensors of 4, 8, 12 and 16 bytes, and use them in reverse; two that stay lie around them."""
    log = _Log()
    lines = log.lines
    with Mover(_CPU, times, PinnedPool(_CPU, MIB), streams=log) as mover:
        trip = mover.begin_forward()
        slots: list[MovedStorage | None] = []
        for number in range(6):
            lines.append(f"pack {number}")
            taken = 1 <= number <= 4
            slots.append(trip.take(numbered(number), torch.zeros(number)) if taken else None)
            trip.packed(numbered(number))
        lines.append("end")
        trip.end_forward()
        for number in reversed(range(6)):
            lines.append(f"unpack {number}")
            trip.unpacking(numbered(number))
            moved = slots.pop()
            if moved is not None:
                moved.back()
            trip.unpacked(numbered(number))
            del moved
    return lines


def _between(lines: list[str], name: str) -> list[str]:
    begin = lines.index(name) + 1
    rest = lines[begin:]
    ends = [i for i, line in enumerate(rest) if line.startswith(("pack", "unpack", "end"))]
    return rest[: ends[0]] if ends else rest


def test_memory_is_given_back_and_taken_when_the_plan_says() -> None:
    schedule = SwapSchedule.of(
        [
            (numbered(4), numbered(5), numbered(5)),  # released at pack 5, fetched at unpack 5
            (numbered(3), numbered(4), numbered(5)),
            (numbered(2), None, numbered(3)),
            (numbered(1), numbered(2), None),
        ]
    )
    lines = _walk(schedule)
    assert _between(lines, "pack 1") == ["out 4"]
    assert _between(lines, "pack 2") == ["out 8", "wait"]
    assert _between(lines, "pack 3") == ["out 12"]
    assert _between(lines, "pack 4") == ["out 16", "wait"]
    assert _between(lines, "pack 5") == ["wait"]
    assert _between(lines, "end") == ["wait"]
    assert _between(lines, "unpack 5") == ["in 16", "in 12"]
    assert _between(lines, "unpack 4") == ["wait"]
    assert _between(lines, "unpack 3") == ["wait", "in 8"]
    assert _between(lines, "unpack 2") == ["wait"]
    assert _between(lines, "unpack 1") == ["in 4", "wait"]


def test_memory_may_be_given_back_in_backward() -> None:
    moves = [(numbered(2), numbered(4), numbered(3)), (numbered(1), numbered(5), numbered(2))]
    lines = _walk(SwapSchedule.of(moves, late={numbered(1), numbered(2)}))
    assert _between(lines, "pack 2") == ["out 8"]
    assert _between(lines, "pack 5") == _between(lines, "pack 4")[1:] == []  # what is packed is no sign
    assert _between(lines, "unpack 5") == ["wait"]
    assert _between(lines, "unpack 4")[0] == "wait"
    assert "in 8" in _between(lines, "unpack 3")
    assert _between(lines, "unpack 2") == ["wait", "in 4"]
    assert _between(lines, "unpack 1") == ["wait"]


def test_without_a_plan_each_leaves_at_once_and_comes_on_demand() -> None:
    lines = _walk(Eager(0))
    for number in (1, 2, 3, 4):
        assert _between(lines, f"pack {number}") == [f"out {number * 4}", "wait"]
        assert _between(lines, f"unpack {number}") == [f"in {number * 4}", "wait"]


def test_without_a_plan_so_many_bytes_wait_and_are_fetched_ahead() -> None:
    lines = _walk(Eager(20))
    assert _between(lines, "pack 2") == ["out 8"]  # 12 bytes wait
    assert _between(lines, "pack 3") == ["out 12", "wait"]  # 24, so the first leaves
    assert _between(lines, "pack 4") == ["out 16", "wait", "wait"]
    assert _between(lines, "end") == ["wait"]
    assert _between(lines, "unpack 4") == ["in 16", "wait", "in 12", "in 8"]
    assert _between(lines, "unpack 3") == ["wait", "in 4"]
    assert _between(lines, "unpack 2") == ["wait"]
    assert _between(lines, "unpack 1") == ["wait"]


def test_a_buffer_is_not_written_while_it_is_read() -> None:
    """One buffer for two tensors: the copy out of the second waits for the copy in of the first."""
    gate: Future[float] = Future()

    class Held(ThreadStreams):
        def copy(self, way: Way, target: Tensor, source: Tensor, after: Any, *, timed: bool) -> Copy:
            marks = (*after, _ThreadMark(gate)) if way == "in" else after
            return super().copy(way, target, source, marks, timed=timed)

    schedule = SwapSchedule.of([(numbered(0), None, numbered(9))])
    with Mover(_CPU, schedule, PinnedPool(_CPU, 512), streams=Held()) as mover:
        trip = mover.begin_forward()
        first = trip.take(numbered(0), torch.full((100,), 1.0))
        trip.end_forward()
        trip.unpacked(numbered(9))
        second = mover.begin_forward().take(numbered(0), torch.full((100,), 2.0))
        time.sleep(0.02)
        gate.set_result(0.0)
        assert first.back().tolist() == [1.0] * 100
        assert second.back().tolist() == [2.0] * 100


def test_each_copy_begins_behind_what_compute_was_asked_last() -> None:
    """On a GPU the tensor may not be made yet, and the memory for one that returns may still be read."""

    class Latest(ThreadStreams):
        latest: Mark | None = None

        def now(self) -> Mark:
            self.latest = mark = super().now()
            return mark

        def copy(self, way: Way, target: Tensor, source: Tensor, after: Any, *, timed: bool) -> Copy:
            assert after[0] is self.latest
            ways.append(way)
            self.latest = None
            return super().copy(way, target, source, after, timed=timed)

    ways: list[Way] = []
    schedule = SwapSchedule.of([(numbered(0), None, numbered(9)), (numbered(1), None, numbered(9))])
    with Mover(_CPU, schedule, PinnedPool(_CPU, 2048), streams=Latest()) as mover:
        trip = mover.begin_forward()
        moved = [trip.take(numbered(number), _base()) for number in range(3)]
        trip.end_forward()
        trip.unpacked(numbered(9))
        assert torch.equal(moved[2].back(), _base())
    assert ways == ["out"] * 3 + ["in"] * 3


def test_several_forwards_may_be_on_their_way(mover: Mover) -> None:
    trips, moved = [], []
    for number in range(3):
        trip = mover.begin_forward()
        moved.append(trip.take(numbered(0), torch.full((50,), float(number))))
        trip.end_forward()
        trips.append(trip)
    assert [each.back()[0].item() for each in moved] == [0, 1, 2]


# ---- changed in place


@pytest.mark.parametrize("when", ["held", "released"])
def test_a_change_in_place_before_release_is_told_when_it_is_asked_for(mover: Mover, when: str) -> None:
    tensor = _base()
    trip = mover.begin_forward()
    moved = trip.take(numbered(0), tensor[3:])
    tensor.add_(1)
    if when == "released":
        trip.end_forward()
    with pytest.raises(ModelError, match=r"module 'layer' .* found version 1 .* needed version 0; replace"):
        moved.back()


def test_a_change_in_place_after_release_does_no_harm(mover: Mover) -> None:
    tensor = _base()
    trip = mover.begin_forward()
    moved = trip.take(numbered(0), tensor)
    trip.end_forward()
    tensor.zero_()
    assert torch.equal(moved.back(), _base())


# ---- nothing stays behind


def test_what_is_dropped_gives_its_memory_back_once_its_copy_is_over() -> None:
    schedule = SwapSchedule.of([(numbered(1), None, numbered(9)), (numbered(2), None, None)])
    with _mover(schedule, most_delay_s=0.02) as mover:
        for _ in range(5):
            trip = mover.begin_forward()
            held = trip.take(numbered(0), torch.ones(300))
            del held  # while the copy goes out
            coming, away = trip.take(numbered(1), torch.ones(300)), trip.take(numbered(2), torch.ones(300))
            trip.end_forward()
            trip.unpacked(numbered(9))
            del coming, away  # while the copy comes in, and in host memory
            assert trip.coming_bytes == 0
        mover.begin_forward()
        assert mover.pool.in_use_bytes == 0
        assert not mover._dropped


def test_a_forward_that_broke_off_is_ended_by_the_next() -> None:
    with _mover() as mover:
        tensor = torch.ones(300)
        moved = mover.begin_forward().take(numbered(0), tensor)
        alive = _storage(tensor)
        del tensor
        mover.begin_forward()
        assert alive() is None
        assert torch.equal(moved.back(), torch.ones(300))


def test_what_finds_no_room_stays_and_is_counted_and_told_once() -> None:
    told: list[str] = []
    with Mover(_CPU, _ON_DEMAND, PinnedPool(_CPU, 1024, tell=told.append), streams=ThreadStreams()) as mover:
        trip = mover.begin_forward()
        first = trip.take(numbered(0), torch.ones(200))
        tensor = torch.full((200,), 2.0)
        stays = [trip.take(numbered(number), tensor) for number in (1, 2)]
        trip.end_forward()
        assert first.is_away
        assert not stays[0].is_away
        assert stays[0].num_bytes == 800
        assert stays[0].back().data_ptr() == tensor.data_ptr()
        (text,) = told
        assert "limits.host_memory" in text
        counted = mover.counters()
        assert (counted.num_out, counted.num_full, counted.full_bytes) == (1, 2, 1600)
        assert (counted.planned_pinned_bytes, counted.most_pinned_bytes) == (1024, 1024)
        del first
        assert torch.equal(mover.begin_forward().take(numbered(0), torch.ones(256)).back(), torch.ones(256))
        assert mover.counters().num_full == 0


def test_what_stays_for_want_of_room_is_still_guarded() -> None:
    with Mover(_CPU, _ON_DEMAND, PinnedPool(_CPU, 0, tell=lambda _: None), streams=ThreadStreams()) as mover:
        trip = mover.begin_forward()
        tensor = torch.ones(8)
        moved = trip.take(numbered(0), tensor)
        trip.end_forward()
        tensor.add_(1)
        with pytest.raises(ModelError, match="changed in place"):
            moved.back()


def test_an_error_inside_leaves_no_thread_and_no_memory() -> None:
    before = threading.active_count()
    mover, kept = _mover(most_delay_s=0.01), []

    def fail() -> None:
        with mover:
            trip = mover.begin_forward()
            kept.extend([trip.take(numbered(number), torch.ones(300)) for number in range(20)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert threading.active_count() == before
    assert mover.pool._slab is None
    kept.clear()
    assert not mover._dropped


# ---- with autograd


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.norm(self.conv(x)))


class _Net(nn.Module):
    """A chain with a skip, a tensor saved twice, an expanded one and indices."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(4) for _ in range(3))
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        skip = x = self.blocks[0](x)
        x = nn.functional.max_pool2d(x, 2)
        x = self.blocks[1](x)
        x = x * torch.sigmoid(x).mean((2, 3), keepdim=True).expand_as(x)
        x = nn.functional.interpolate(self.blocks[2](x), scale_factor=2)
        return self.last(torch.cat((x, skip), 1)).exp()


class Hooks:
    """The least that pack and unpack must do: keys in order, weights left out, each storage once."""

    def __init__(self, trip: Trip, model: nn.Module, wanted: Callable[[int], bool]) -> None:
        self._trip, self._wanted = trip, wanted
        self._weights = {id(each.untyped_storage()) for each in (*model.parameters(), *model.buffers())}
        self._found: dict[int, tuple[weakref.ref[Any], int, weakref.ref[MovedStorage]]] = {}
        self.num_packs = 0

    def pack(self, tensor: Tensor) -> Any:
        if id(tensor.untyped_storage()) in self._weights:
            return tensor, None, None, None
        key = numbered(self.num_packs)
        self.num_packs += 1
        moved = self._once(key, tensor) if self._wanted(key[2]) else None
        self._trip.packed(key)
        geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        return (tensor.detach() if moved is None else moved), key, geometry, tensor.dtype

    def _once(self, key: Key, tensor: Tensor) -> MovedStorage:
        storage = tensor.untyped_storage()
        reference, version, found = self._found.get(id(storage), (None, 0, None))
        moved = found() if found is not None else None
        if reference is None or reference() is not storage or version != tensor._version or moved is None:
            moved = self._trip.take(key, tensor)
            self._found[id(storage)] = weakref.ref(storage), tensor._version, weakref.ref(moved)
        return moved

    def unpack(self, packed: Any) -> Any:
        held, key, geometry, _ = packed
        if key is None:
            return held
        self._trip.unpacking(key)
        tensor = held.back().as_strided(*geometry) if isinstance(held, MovedStorage) else held
        self._trip.unpacked(key)
        return tensor


def _inputs() -> list[Tensor]:
    return [torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]


def _net() -> _Net:
    torch.manual_seed(3)
    return _Net()


def _plain_gradients() -> list[Tensor]:
    model = _net()
    for x in _inputs():
        model(x).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None] + list(model.buffers())


def _moved_gradients(mover: Mover, wanted: Callable[[int], bool], *, together: bool = False) -> list[Tensor]:
    model = _net()
    losses = []
    for x in _inputs():
        trip = mover.begin_forward()
        hooks = Hooks(trip, model, wanted)
        with saved_tensors_hooks(hooks.pack, hooks.unpack):
            losses.append(model(x).sum())
        trip.end_forward()
        if not together:
            losses.pop().backward()
    for loss in losses:
        loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None] + list(model.buffers())


def _num_packs() -> int:
    with _mover() as mover:
        hooks = Hooks(mover.begin_forward(), _net(), lambda _: False)
        with saved_tensors_hooks(hooks.pack, hooks.unpack):
            _net()(_inputs()[0])
        return hooks.num_packs


def _equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "two forwards first"])
@pytest.mark.parametrize("ahead_bytes", [0, 4000, MIB])
def test_gradients_are_the_same_when_all_is_moved(ahead_bytes: int, together: bool) -> None:
    with _mover(Eager(ahead_bytes), most_delay_s=0.001) as mover:
        mover.timed = True
        _equal(_moved_gradients(mover, lambda _: True, together=together), _plain_gradients())
        mover.begin_forward()
        counted = mover.counters()
    assert counted.num_out == counted.num_in > 20
    assert counted.out_bytes == counted.in_bytes > 0
    assert counted.pinned_bytes == 0
    assert counted.num_on_demand == counted.num_in if ahead_bytes == 0 else counted.late_share < 1
    assert counted.stall_s is not None
    assert counted.stall_s > 0
    assert counted.out_bytes_per_s is not None


@pytest.mark.parametrize("seed", range(25))
def test_gradients_are_the_same_at_any_schedule_and_under_any_delay(seed: int) -> None:
    """Also at schedules that make no sense: a plan may cost time and memory, never the answer."""
    chance = random.Random(seed)
    num = _num_packs()
    wanted = {number for number in range(num) if chance.random() < 0.7}
    any_time: list[Key | None] = [None, *map(numbered, range(num))]
    moves = [
        (numbered(number), chance.choice(any_time), chance.choice(any_time)) for number in sorted(wanted)
    ]
    chance.shuffle(moves)
    late = {numbered(number) for number in wanted if seed % 2 and chance.random() < 0.5}
    with _mover(SwapSchedule.of(moves, late), most_delay_s=0.002, seed=seed) as mover:
        found = _moved_gradients(mover, wanted.__contains__, together=seed % 3 == 0)
        mover.begin_forward()
        assert mover.pool.in_use_bytes == 0
    _equal(found, _plain_gradients())


def test_a_graph_that_is_kept_can_be_used_twice(mover: Mover) -> None:
    model, x = _net(), _inputs()[0]
    trip = mover.begin_forward()
    hooks = Hooks(trip, model, lambda _: True)
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        loss = model(x).sum()
    trip.end_forward()
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    _equal(list(torch.autograd.grad(loss, parameters)), list(first))
    _equal(list(first), list(torch.autograd.grad(_net()(x).sum().mul(0) + model(x).sum(), parameters)))


def test_a_thousand_steps_take_no_more_than_one() -> None:
    weight = torch.randn(64, requires_grad=True)
    schedule = SwapSchedule.of([(numbered(0), numbered(2), numbered(2)), (numbered(1), None, None)])
    with _mover(schedule, size_bytes=2 * 512) as mover:
        mover.timed = True
        gc.collect()
        gc.disable()  # nothing may need it
        try:
            for step in range(1000):
                trip = mover.begin_forward()
                hooks = Hooks(trip, nn.Module(), lambda number: number < 4)
                with saved_tensors_hooks(hooks.pack, hooks.unpack):
                    loss = (weight * 2).sin().exp().sin().sum()
                trip.end_forward()
                if step % 10:
                    loss.backward()
                del loss
        finally:
            gc.enable()
        mover.begin_forward()
        assert mover.pool.in_use_bytes == 0
        assert len(mover.pool._free) == 1
        assert not mover._dropped
        assert len(mover.tally._copies) < 20
        counted = mover.counters()
    # the exponential is saved twice and moved once; every tenth graph is dropped
    assert (counted.num_out, counted.num_in, counted.num_on_demand) == (2000, 1800, 900)
    assert counted.most_pinned_bytes == 2 * 512


def test_an_in_place_change_that_hooks_would_hide_is_found(mover: Mover) -> None:
    model = nn.Linear(4, 4)
    trip = mover.begin_forward()
    hooks = Hooks(trip, model, lambda _: True)
    x = torch.randn(3, 4, requires_grad=True)
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        y = model(x).exp()
        loss = y.sum()
        with torch.no_grad():
            y.add_(1)
    trip.end_forward()
    with pytest.raises(ModelError, match="changed in place"):
        loss.backward()
