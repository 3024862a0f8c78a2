"""Augmentations move pixels, validity and labels together."""

from __future__ import annotations

import numpy as np
import pytest

from outsize.data.augment import AUGMENTATIONS, augment
from outsize.data.sample import Sample


def _sample() -> Sample:
    labels = np.arange(36, dtype=np.uint8).reshape(6, 6)
    return Sample(np.stack([labels, labels + 100]).astype(np.uint16), labels % 5 > 0, labels)


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_pixel_and_label_move_together(name: str) -> None:
    seen = set()
    for seed in range(30):
        moved = augment(_sample(), (name,), np.random.default_rng(seed))
        np.testing.assert_array_equal(moved.image[0], moved.labels)
        np.testing.assert_array_equal(moved.image[1], moved.labels + 100)
        np.testing.assert_array_equal(moved.valid, moved.labels % 5 > 0)
        assert sorted(moved.labels.ravel()) == list(range(36))
        assert moved.image.flags.c_contiguous
        seen.add(moved.labels.tobytes())
    assert len(seen) == {"flip": 2, "turn": 4}[name]


def test_flip_and_turn_reach_all_eight_ways_a_square_can_lie() -> None:
    ways = {
        augment(_sample(), ("flip", "turn"), np.random.default_rng(seed)).labels.tobytes()
        for seed in range(200)
    }
    assert len(ways) == 8


def test_the_generator_alone_decides() -> None:
    first, second = (augment(_sample(), ("flip", "turn"), np.random.default_rng(4)) for _ in range(2))
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(augment(_sample(), (), np.random.default_rng(4)).image, _sample().image)
