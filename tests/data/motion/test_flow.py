"""Motion is found where there is some, and missing libraries are named."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from outsize.data.frames import to_levels
from outsize.data.motion import find_motion
from outsize.data.synthetic import draw_rain
from outsize.errors import JobError

NEEDS_PYSTEPS = pytest.mark.skipif(find_spec("pysteps") is None, reason="needs pysteps")
METHODS = ("dis", "lucas-kanade", pytest.param("pysteps", marks=NEEDS_PYSTEPS))


@pytest.mark.parametrize("method", METHODS)
def test_drawn_motion_is_found(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    still = draw_rain(1, 128, seed=3, num_cells=40)[0]
    frames = [to_levels(np.roll(still, (2 * step, 3 * step), (0, 1))) for step in range(4)]
    motion = find_motion(frames, method)
    assert motion.shape == (2, 128, 128)
    np.testing.assert_allclose(np.median(motion, axis=(1, 2)), (2, 3), atol=0.5)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("method", METHODS)
def test_nothing_moves_in_dry_frames(method: str) -> None:
    assert np.abs(find_motion([np.zeros((40, 48), np.int16)] * 4, method)).max() < 1e-3


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [np.zeros((8, 8), np.int16)] * 4
    with pytest.raises(JobError, match="one of dis"):
        find_motion(frames, "magic")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(JobError, match="opencv-python-headless"):
        find_motion(frames)
    monkeypatch.setitem(sys.modules, "pysteps", None)
    with pytest.raises(JobError, match="pip install pysteps"):
        find_motion(frames, "pysteps")
