"""Drawn rain moves, and is the same for the same seed."""

from __future__ import annotations

import numpy as np

from outsize.data.synthetic import draw_rain


def test_cells_move_grow_and_decay() -> None:
    frames = draw_rain(24, 64, seed=1, num_cells=20)
    np.testing.assert_array_equal(frames, draw_rain(24, 64, seed=1, num_cells=20))
    assert frames.dtype == np.float32
    assert frames.min() == 0
    assert 0.01 < (frames >= 1).mean() < 0.9
    assert np.abs(np.diff(frames.sum((1, 2)))).max() > 0
    assert (frames[0] != draw_rain(24, 64, seed=2, num_cells=20)[0]).any()
