"""The dual loss: nothing for a sure and right answer, more the more edges are amiss, and smooth maps of changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.dual import _changes, _smooth, dual_sum


def _labels() -> Tensor:
    labels = torch.zeros(2, 40, 40, dtype=torch.uint8)
    labels[0, 10:30, 12:25] = 1
    labels[1, :, 20:] = 2
    return labels


def _sure(labels: Tensor, by: float = 100.0) -> Tensor:
    return by * functional.one_hot(labels.long(), 3).permute(0, 3, 1, 2).float()


def _loss(logits: Tensor, labels: Tensor) -> float:
    torch.manual_seed(0)
    return float(dual_sum(logits, labels))


def test_smoothing_is_a_triangle_of_radius_4() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 31))
    triangle = np.array([1, 2, 3, 4, 5, 4, 3, 2, 1]) / 25
    expected = ndimage.correlate1d(ndimage.correlate1d(values, triangle, axis=0), triangle, axis=1)
    found = _smooth(torch.from_numpy(values)[None, None])[0, 0].numpy()
    np.testing.assert_allclose(found[4:-4, 4:-4], expected[4:-4, 4:-4], atol=1e-12)


def test_changes_are_halved_differences_of_both_neighbours_as_a_share_of_the_largest() -> None:
    rng = np.random.default_rng(1)
    maps = rng.normal(size=(2, 3, 9, 8))
    down, right = np.gradient(maps, axis=2), np.gradient(maps, axis=3)
    size = np.hypot(down, right)[:, :, 1:-1, 1:-1]
    known = torch.ones(2, 1, 9, 8, dtype=torch.bool)
    known[..., [0, -1], :], known[..., [0, -1]] = False, False
    found = _changes(torch.from_numpy(maps), known).numpy()[:, :, 1:-1, 1:-1]
    np.testing.assert_allclose(found, size / size.max((1, 2, 3), keepdims=True), rtol=1e-6)


def test_a_sure_and_right_answer_costs_nothing_and_shifted_edges_cost_more() -> None:
    labels = _labels()
    right = _loss(_sure(labels), labels)
    assert right < 1e-6
    near = _loss(_sure(labels.roll(2, dims=2)), labels)
    far = _loss(_sure(labels.roll(9, dims=2)), labels)
    assert 0.05 < near < far


def test_unsure_classes_cost_and_one_class_alone_does_not() -> None:
    labels = _labels()
    assert _loss(_sure(labels, by=0.5), labels) > 0.2
    one = torch.full_like(labels, 1)
    assert _loss(_sure(one), one) < 1e-6


def test_the_border_of_what_is_labelled_is_no_edge() -> None:
    labels = _labels()
    labels[:, 15:19] = IGNORE
    shown = torch.where(labels == IGNORE, 2, labels)
    assert _loss(_sure(shown), labels) < 1e-6
    nothing = torch.full_like(labels, IGNORE)
    assert _loss(_sure(shown), nothing) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_image_alone_costs_what_it_costs_among_others(dtype: torch.dtype) -> None:
    labels = _labels()
    logits = _sure(labels.roll(5, dims=1)).to(dtype)
    alone = sum(_loss(logits[i : i + 1], labels[i : i + 1]) for i in range(2))
    assert alone == pytest.approx(_loss(logits, labels), rel=1e-4)
