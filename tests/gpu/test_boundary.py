"""On a GPU: outlines are counted as on the CPU, in a few milliseconds for a picture of a street."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outsize.metrics import boundary
from outsize.metrics.boundary import count_outlines, tolerances_for


def _maps(height: int, width: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    regions = rng.integers(0, num_classes, (height // 50 + 1, width // 50 + 1)).astype(np.uint8)
    truth = np.kron(regions, np.ones((50, 50), np.uint8))[:height, :width]
    predicted = np.roll(truth, (3, 5), (0, 1))
    truth[rng.random(truth.shape) < 0.01] = 255
    return torch.from_numpy(truth), torch.from_numpy(predicted)


@pytest.mark.parametrize("num_classes", [2, 11, 19, 60, 100])
@pytest.mark.parametrize("strip_px", [20_000, 2**23])
def test_counts_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, num_classes: int, strip_px: int
) -> None:
    monkeypatch.setattr(boundary, "_GPU_STRIP_PX", strip_px)
    maps, (tolerances,) = _maps(361, 479, num_classes), tolerances_for([(361, 479)])
    here = count_outlines(*maps, num_classes, tolerances)
    there = count_outlines(*(each.cuda() for each in maps), num_classes, tolerances)
    np.testing.assert_array_equal(here.pixels, there.pixels)
    np.testing.assert_array_equal(here.diagonal, there.diagonal)


def test_a_picture_takes_milliseconds() -> None:
    truth, predicted = (each.cuda() for each in _maps(1024, 2048, 19))
    (tolerances,) = tolerances_for([(1024, 2048)])
    times_ms = []
    for _ in range(10):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        count_outlines(truth, predicted, 19, tolerances)
        after.record()
        torch.cuda.synchronize()
        times_ms.append(before.elapsed_time(after))
    print(f"boundary F of 1024 x 2048 px, 19 classes: {np.median(times_ms):.1f} ms")
    assert np.median(times_ms) < 30
