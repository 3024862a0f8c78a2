"""On a GPU: moved tensors come back bit for bit, memory falls to what the schedule says, copies hide under kernels."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.strategies.swap.test_move import Hooks, numbered
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.strategies.swap import pinned
from outsize.strategies.swap.move import Mover
from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.schedule import Eager, SwapSchedule

MIB = 2**20
DEVICE = torch.device("cuda", 0)
ON_DEMAND = SwapSchedule({}, {})
_LATE = 200_000_000  # cycles, about a tenth of a second: the host is far ahead


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.cuda.empty_cache()  # some tests look at which memory is used again
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def _mover(times: SwapSchedule | Eager = ON_DEMAND, size_bytes: int = 64 * MIB) -> Mover:
    return Mover(DEVICE, times, PinnedPool(DEVICE, size_bytes))


# ---- bytes and order


def _views() -> dict[str, Tensor]:
    base = torch.arange(6000, dtype=torch.float32, device=DEVICE)
    return {
        "float32": torch.randn(700, 3, device=DEVICE),
        "bf16": torch.randn(55, 5, device=DEVICE).bfloat16(),
        "int64": torch.randint(-(2**62), 2**62, (9,), device=DEVICE),
        "bool": torch.rand(1111, device=DEVICE) > 0.5,
        "channels last": torch.randn(2, 3, 40, 50, device=DEVICE).contiguous(
            memory_format=torch.channels_last
        ),
        "strided": base[::3],
        "offset": base[7:29],
        "expanded": base[5:6].expand(4, 8),
        "no bytes": torch.empty(0, 4, device=DEVICE),
    }


def test_bytes_come_back() -> None:
    for name, tensor in _views().items():
        with _mover() as mover:
            trip = mover.begin_forward()
            moved = trip.take(numbered(0), tensor)
            trip.end_forward()
            back = moved.back()
            assert torch.equal(back, tensor), name
            assert (back.dtype, back.stride(), back.storage_offset()) == (
                tensor.dtype,
                tensor.stride(),
                tensor.storage_offset(),
            )
            assert moved.is_away is False
            assert name == "no bytes" or back.data_ptr() != tensor.data_ptr()


def test_a_tensor_leaves_only_once_it_is_made() -> None:
    with _mover() as mover:
        tensor = torch.zeros(4 * MIB, device=DEVICE)
        torch.cuda.synchronize()
        torch.cuda._sleep(_LATE)
        tensor.fill_(3)
        trip = mover.begin_forward()
        moved = trip.take(numbered(0), tensor)
        del tensor
        trip.end_forward()
        assert bool((moved.back() == 3).all())


def test_memory_is_not_written_before_its_last_reader_is_done() -> None:
    with _mover() as mover:
        trip = mover.begin_forward()
        moved = trip.take(numbered(0), torch.full((8 * MIB,), 5.0, device=DEVICE))
        trip.end_forward()
        torch.cuda.synchronize()
        other = torch.ones(8 * MIB, device=DEVICE)
        place = other.data_ptr()
        torch.cuda._sleep(_LATE)
        seen = other * 2
        del other
        back = moved.back()
        assert back.data_ptr() == place  # else this shows nothing
        assert bool((seen == 2).all())
        assert bool((back == 5).all())


def test_memory_is_not_used_again_before_its_copy_is_over() -> None:
    """Of a tensor that leaves, and of one that was asked back and dropped."""
    schedule = SwapSchedule.of([(numbered(0), numbered(1), numbered(9))])
    with _mover(schedule, 512 * MIB) as mover:
        trip = mover.begin_forward()
        tensor = torch.full((64 * MIB,), 5.0, device=DEVICE)
        place = tensor.data_ptr()
        moved = trip.take(numbered(0), tensor)
        del tensor
        trip.packed(numbered(1))
        other = torch.full((64 * MIB,), 7.0, device=DEVICE)
        assert other.data_ptr() == place
        trip.end_forward()
        assert bool((moved.back() == 5).all())
        assert bool((other == 7).all())
        del moved, other

        trip = mover.begin_forward()
        moved = trip.take(numbered(0), torch.full((64 * MIB,), 5.0, device=DEVICE))
        trip.end_forward()
        torch.cuda.synchronize()
        trip.unpacked(numbered(9))
        del moved
        mover.begin_forward()
        other = torch.full((64 * MIB,), 7.0, device=DEVICE)
        torch.cuda.synchronize()
        assert bool((other == 7).all())
        assert mover.pool.in_use_bytes == 0


# ---- the pool


def test_the_slab_is_page_locked_exact_and_given_back() -> None:
    before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    for _ in range(3):  # the same addresses come again
        pool = PinnedPool(DEVICE, 96 * MIB + 1)
        assert pool.pinned
        assert pool.size_bytes == 96 * MIB + 512
        assert pool.memory(pool.take(10 * MIB)).is_pinned()
        pool.close()
    assert torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) == before
    stock = torch.empty(96 * MIB + 1, dtype=torch.uint8, pin_memory=True)
    rounded = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) - before
    print(f"\ntorch's own pinned memory takes {rounded / MIB:.0f} MiB for {stock.numel() / MIB:.0f} MiB")


def test_a_refusal_is_told_and_hurts_no_kernel_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PinnedPool(DEVICE, 8 * MIB)
    slab = first._slab
    assert slab is not None
    told: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(pinned, "_slab", lambda num_bytes: slab)  # registered already, so CUDA refuses
        second = PinnedPool(DEVICE, 8 * MIB, tell=told.append)
    assert len(told) == 1
    assert not second.pinned
    assert float(torch.ones(10, device=DEVICE).sum()) == 10
    second.close()
    first.close()
    print(f"\n{told[0]}")


def test_unpinned_copies_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pin", lambda slab, device: "refused")
    with Mover(DEVICE, Eager(MIB), PinnedPool(DEVICE, 64 * MIB, tell=lambda text: None)) as mover:
        assert not mover.pool.memory(mover.pool.take(1)).is_pinned()
        _equal(_gradients(mover), _gradients(None))


# ---- gradients


def _net() -> nn.Module:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(6):
        layers += [nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers).to(DEVICE)


def _gradients(mover: Mover | None, *, bf16: bool = False, late: bool = False) -> list[Tensor]:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for seed in range(4):
        x = torch.randn(4, 3, 96, 96, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        optimizer.zero_grad()
        if late:
            torch.cuda._sleep(_LATE // 4)
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = _forward(mover, model, x)
        loss.backward()
        optimizer.step()
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def _forward(mover: Mover | None, model: nn.Module, x: Tensor) -> Any:
    if mover is None:
        return model(x).float().square().mean()
    trip = mover.begin_forward()
    hooks = Hooks(trip, model, lambda _: True)
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        loss = model(x).float().square().mean()
    trip.end_forward()
    return loss


def _equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("ahead_bytes", [0, 8 * MIB, 256 * MIB])
@pytest.mark.parametrize("late", [False, True], ids=["", "host far ahead"])
def test_training_is_the_same(bf16: bool, ahead_bytes: int, late: bool) -> None:
    expected = _gradients(None, bf16=bf16)
    _equal(_gradients(None, bf16=bf16), expected)  # else nothing could be said
    with _mover(Eager(ahead_bytes), 512 * MIB) as mover:
        _equal(_gradients(mover, bf16=bf16, late=late), expected)
        counted = mover.counters()
    assert 40 < counted.num_in <= counted.num_out


# ---- memory and time: a chain of layers that save 64 MiB each and compute for a while

LAYERS, SIDE = 12, 4096
_LAYER_BYTES = SIDE * SIDE * 4


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIDE, SIDE, device=DEVICE) / SIDE**0.5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(LAYERS):
            x = (x @ self.weight).tanh()  # saves x for the product, and the result for tanh: one storage
        return x


def _schedule(ahead: int) -> SwapSchedule:
    """Release a layer when the second after it is saved, fetch it `ahead` layers before it is used.

    Saved are: the input (0), and of each layer its result for tanh (odd) and for the next product (even).
    """
    moves = []
    for layer in range(LAYERS - 3):
        key = 1 + 2 * layer
        fetched = min(key + 2 * ahead, 2 * LAYERS - 1)
        moves.append((numbered(key), numbered(key + 4), numbered(fetched)))
    return SwapSchedule.of(reversed(moves))


def _chosen(number: int) -> bool:
    return 1 <= number < 2 * (LAYERS - 3) + 1


def _chain_step(mover: Mover | None, chain: _Chain, x: Tensor, pause_s: float = 0.0) -> int:
    """Run a step and return its peak above what was there before."""
    chain.weight.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if mover is None:
        chain(x).sum().backward()
    else:
        trip = mover.begin_forward()
        hooks = Hooks(trip, chain, _chosen)

        def pack(tensor: Tensor) -> Any:
            time.sleep(pause_s)
            return hooks.pack(tensor)

        with saved_tensors_hooks(pack, hooks.unpack):
            loss = chain(x).sum()
        trip.end_forward()
        loss.backward()
    return torch.cuda.max_memory_allocated() - before


def test_memory_falls_to_the_same_peak_however_far_the_host_is_ahead() -> None:
    chain, x = _Chain(), torch.randn(SIDE, SIDE, device=DEVICE)
    for _ in range(2):
        plain = _chain_step(None, chain, x)
    expected = chain.weight.grad
    assert expected is not None
    with _mover(_schedule(2), LAYERS * _LAYER_BYTES) as mover:
        peaks = []
        for pause_s, late in ((0.0, 0), (0.0, 0), (0.0, _LATE * 3), (0.01, 0), (0.0, _LATE), (0.0, 0)):
            torch.cuda.synchronize()
            if late:
                torch.cuda._sleep(late)
            peaks.append(_chain_step(mover, chain, x, pause_s))
            assert chain.weight.grad is not None
            assert torch.equal(chain.weight.grad, expected)
        counted = mover.counters()
    print(f"\npeak {plain / MIB:.0f} MiB plain, {[round(peak / MIB) for peak in peaks]} moved; {counted}")
    assert len(set(peaks)) == 1
    assert plain - peaks[0] >= (LAYERS - 7) * _LAYER_BYTES
    assert counted.most_pinned_bytes == (LAYERS - 3) * _LAYER_BYTES
    assert counted.num_on_demand == 0


def test_two_hundred_steps_take_no_more_than_three() -> None:
    chain, x = _Chain(), torch.randn(SIDE, SIDE, device=DEVICE)
    with _mover(_schedule(2), LAYERS * _LAYER_BYTES) as mover:
        for step in range(200):
            _chain_step(mover, chain, x)
            if step == 2:
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
        mover.begin_forward()
        assert mover.pool.in_use_bytes == 0
        assert mover.pool.most_bytes == (LAYERS - 3) * _LAYER_BYTES


def test_copies_run_under_kernels(tmp_path: Path) -> None:
    """On an H200 a product in float32 takes about 3 ms, and a copy 1.2 ms."""
    chain, x = _Chain(), torch.randn(SIDE, SIDE, device=DEVICE)
    for _ in range(3):
        _chain_step(None, chain, x)
    plain_s = _seconds(lambda: _chain_step(None, chain, x))
    with _mover(_schedule(2), LAYERS * _LAYER_BYTES) as mover:
        for _ in range(3):
            _chain_step(mover, chain, x)
        moved_s = _seconds(lambda: _chain_step(mover, chain, x))
        mover.counters()
        mover.timed = True
        _chain_step(mover, chain, x)
        counted = mover.counters()
        mover.timed = False
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            _chain_step(mover, chain, x)
            torch.cuda.synchronize()
    trace = tmp_path / "trace.json"
    profile.export_chrome_trace(str(trace))
    copy_s, under_s = _copies_under_kernels(json.loads(trace.read_text()))
    print(f"\nplain {plain_s * 1e3:.2f} ms, moved {moved_s * 1e3:.2f} ms; copies {copy_s * 1e3:.2f} ms")
    print(f"under kernels {under_s / copy_s:.1%}; {counted}")
    assert copy_s > 0
    assert under_s / copy_s > 0.8
    assert counted.stall_s is not None
    assert counted.out_bytes_per_s is not None


def test_waiting_is_counted_and_the_host_is_quick() -> None:
    chain, x = _Chain(), torch.randn(SIDE, SIDE, device=DEVICE)
    with _mover(Eager(0), (LAYERS + 1) * _LAYER_BYTES) as mover:
        _chain_step(mover, chain, x)
        mover.counters()
        mover.timed = True
        _chain_step(mover, chain, x)
        counted = mover.counters()
        assert counted.num_stalls is not None
        assert counted.num_stalls >= LAYERS - 3
        assert counted.late_share == 1
    small = [torch.ones(64, device=DEVICE) for _ in range(200)]
    with _mover(SwapSchedule({}, {}), MIB) as mover:
        for _ in range(3):
            torch.cuda.synchronize()
            start_s = time.perf_counter()
            trip = mover.begin_forward()
            moved = [trip.take(numbered(number), tensor) for number, tensor in enumerate(small)]
            trip.end_forward()
            middle_s = time.perf_counter()
            while moved:
                moved.pop().back()
            end_s = time.perf_counter()
    print(f"\n{counted}")
    print(
        f"host: {(middle_s - start_s) * 5e3:.1f} us to take, {(end_s - middle_s) * 5e3:.1f} us to give back"
    )


def _seconds(run: Callable[[], object], num_runs: int = 5) -> float:
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(num_runs):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start_s) / num_runs


def _copies_under_kernels(trace: dict[str, Any]) -> tuple[float, float]:
    """Return the time of all copies between host and device, and how much of it a kernel ran."""
    kernels, copies = [], []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X":
            continue
        span = event["ts"], event["ts"] + event["dur"]
        if event.get("cat") == "kernel":
            kernels.append(span)
        elif event.get("cat") == "gpu_memcpy" and ("DtoH" in event["name"] or "HtoD" in event["name"]):
            copies.append(span)
    copy_us = sum(end - begin for begin, end in copies)
    # kernels of one stream do not overlap
    under_us = sum(
        max(0.0, min(end, last) - max(begin, first)) for begin, end in copies for first, last in kernels
    )
    return copy_us / 1e6, under_us / 1e6
