"""On a GPU: causes are provoked for real, a step is profiled, and the verdict names what was provoked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from outsize.bench.taken_apart import parts_of, rates_of, run_steps
from outsize.bench.verdict import Around, Verdict, judge
from outsize.measure.machine import machine_rates

_MIB = 2**20


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _judged(step: Callable[[Any], object], trace: Path, *, swaps: bool = False, **around: Any) -> Verdict:
    def batches() -> Iterator[Any]:
        while True:
            yield None

    found = run_steps(batches(), step, trace, _device(), num_warm=3, num_timed=6, num_profiled=3)
    rate, link = rates_of(found)["host to device"], machine_rates(_device()).to_device_bytes_per_s
    share = None if rate is None or link is None else rate / link
    known = {"making_s": 1e-4, "making_cpu_s": 1e-4, "link_share": share}
    return judge(parts_of(found, swaps=swaps), Around("GPU", 8, 4, 16, **{**known, **around}))


def _large() -> Callable[[Any], object]:
    matrix = torch.randn(8192, 8192, device=_device())
    return lambda _: [matrix @ matrix for _ in range(4)]


def test_compute_bound(tmp_path: Path) -> None:
    assert _judged(_large(), tmp_path / "trace.json").cause == "compute-bound"


def test_slow_link(tmp_path: Path) -> None:
    """A copy stream that is throttled: pieces of pageable memory, each waited for."""
    device, large = _device(), _large()
    source = torch.zeros(256 * _MIB, dtype=torch.uint8)
    target = torch.empty_like(source, device=device)

    def step(batch: Any) -> None:
        for start in range(0, source.numel(), _MIB):
            target[start : start + _MIB].copy_(source[start : start + _MIB])
            torch.cuda.synchronize(device)
        large(batch)

    verdict = _judged(step, tmp_path / "trace.json")
    assert verdict.cause == "slow link", verdict


def test_launch_bound(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(300))).to(_device())
    images = torch.randn(8, 16, device=_device())
    verdict = _judged(lambda _: layers(images).sum().backward(), tmp_path / "trace.json", records=True)
    assert verdict.cause == "launch-bound", verdict
    assert "train.graph" in verdict.change


def test_swap_stall(tmp_path: Path) -> None:
    """Tensors that a step needs at once come back from host memory while nothing else runs."""
    device, large = _device(), _large()
    held = torch.empty(2048 * _MIB, dtype=torch.uint8).pin_memory()
    back = torch.empty_like(held, device=device)

    def step(batch: Any) -> None:
        back.copy_(held, non_blocking=True)
        large(batch)

    verdict = _judged(step, tmp_path / "trace.json", swaps=True)
    assert verdict.cause == "swap stall", verdict


def test_batch_too_small(tmp_path: Path) -> None:
    """Kernels that do not fill the device: of twice the batch they take as long."""
    weights = torch.randn(512, 512, device=_device())

    def step_of(batch: int) -> Callable[[Any], object]:
        images = torch.randn(batch, 512, device=_device())

        def run(_: Any) -> None:
            found = images
            for _ in range(50):
                found = found @ weights

        graph = torch.cuda.CUDAGraph()
        run(None)
        with torch.cuda.graph(graph):
            run(None)
        return lambda _: [graph.replay() for _ in range(20)]

    def seconds(step: Callable[[Any], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        step(None)
        begin.record()
        for _ in range(10):
            step(None)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e4

    verdict = _judged(step_of(8), tmp_path / "trace.json", twice_s=seconds(step_of(16)))
    assert verdict.cause == "batch too small", verdict
