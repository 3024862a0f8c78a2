"""On a GPU: looking at it while it works costs under 1 % of what it does."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

import torch

from outsize.measure.usage import watching

_STEPS, _TURNS = 150, 7


def test_sampling_costs_under_a_hundredth_of_throughput() -> None:
    device = torch.device("cuda:0")
    model = torch.nn.Sequential(*(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(8))).to(device)
    images = torch.randn(8, 32, 256, 256, device=device)

    def turn_s(watched: bool) -> float:
        torch.cuda.synchronize(device)
        with watching(device) if watched else nullcontext():
            began_s = time.perf_counter()
            for _ in range(_STEPS):
                model(images).square().mean().backward()
                model.zero_grad(set_to_none=True)
            torch.cuda.synchronize(device)
            return time.perf_counter() - began_s

    turn_s(True), turn_s(False)
    pairs = [(turn_s(True), turn_s(False)) for _ in range(_TURNS)]
    ratio = statistics.median(watched for watched, _ in pairs) / statistics.median(
        plain for _, plain in pairs
    )
    print(f"watched against not, medians of {_TURNS} turns in turn: {ratio:.4f}")
    assert min(pairs)[1] > 1.0, "each turn must be long enough for several looks: raise _STEPS"
    assert ratio < 1.01
