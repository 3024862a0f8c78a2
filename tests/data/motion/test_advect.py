"""Frames carried on: by whole pixels exactly, from outside unknown."""

from __future__ import annotations

import numpy as np

from outsize.data.frames import UNKNOWN
from outsize.data.motion import advected, persistent

FRAME = np.random.default_rng(0).integers(0, 3000, (12, 16)).astype(np.int16)


def test_whole_pixels() -> None:
    motion = np.zeros((2, 12, 16), np.float32)
    motion[0], motion[1] = 1, -2  # down and left
    made = advected(FRAME, motion, 3)
    for lead in range(1, 4):
        np.testing.assert_array_equal(made[lead - 1, lead:, : -2 * lead], FRAME[:-lead, 2 * lead :])
        assert (made[lead - 1, :lead] == UNKNOWN).all()  # nobody knows what comes in
        assert (made[lead - 1, :, -2 * lead :] == UNKNOWN).all()


def test_half_a_pixel_is_the_mean() -> None:
    motion = np.zeros((2, 12, 16), np.float32)
    motion[1] = 0.5
    wanted = (FRAME[:, 1:].astype(float) + FRAME[:, :-1]) / 2
    np.testing.assert_allclose(advected(FRAME, motion, 1)[0, :, 1:], wanted, atol=0.51)


def test_a_turning_motion_is_followed_step_by_step() -> None:
    rows, cols = np.mgrid[:64, :64].astype(np.float32) - 31.5
    angle = 2 * np.pi / 80  # of a step
    frame = np.zeros((64, 64), np.int16)
    frame[29:34, 50:55] = 2000  # to the right of the middle
    # what is here now was there before: a turn back by the angle
    down, right = (
        rows - (np.cos(angle) * rows - np.sin(angle) * cols),
        cols - (np.cos(angle) * cols + np.sin(angle) * rows),
    )
    motion = np.stack((down, right))
    last = advected(frame, motion.astype(np.float32), 20)[-1].clip(min=0)  # a quarter: below the middle
    row, col = (float((axis * last).sum() / last.sum()) for axis in (rows, cols))
    assert abs(row - 20.5) < 2
    assert abs(col) < 2


def test_what_is_unknown_stays_so() -> None:
    frame = FRAME.copy()
    frame[3:6, 3:6] = UNKNOWN
    made = advected(frame, np.zeros((2, 12, 16), np.float32), 2)
    np.testing.assert_array_equal(made, persistent(frame, 2))
