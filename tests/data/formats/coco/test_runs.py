"""Runs of masks are those of COCO's tools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.data.formats.coco.file import Rle
from outsize.data.formats.coco.masks import decode_rle
from outsize.data.formats.coco.runs import pack_runs, runs, unpack_counts
from outsize.data.object import Object
from outsize.tiles.window import Window

HEIGHT, WIDTH = 13, 17


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_runs_are_those_of_coco(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for window in (Window(2, 1, 9, 12), Window(0, 2, HEIGHT, 3)):
        shape = (window.height, window.width)
        each = Object(0, window, (rng.random(shape) < 0.6) | (window.height == HEIGHT))
        whole = np.zeros((HEIGHT, WIDTH), np.bool_)
        whole[window.slices] = each.mask
        counts = runs(each, HEIGHT, WIDTH)
        assert all(count > 0 for count in counts[1:])
        assert np.array_equal(decode_rle(Rle((HEIGHT, WIDTH), counts)), whole)
        assert unpack_counts(pack_runs(counts)) == counts


def test_runs_of_a_large_picture_are_packed_as_coco_tools_do() -> None:
    # what faster_coco_eval.core.mask.encode gives for the same mask
    each = Object(0, Window(3, 2, 2, 2), np.array([[1, 1], [0, 1]], np.bool_))
    assert runs(each, 6, 5) == (15, 1, 5, 2, 7)
    assert pack_runs(runs(each, 6, 5)) == "?1512"
    assert unpack_counts(pack_runs((100_000, 3, 70, 3, 5))) == (100_000, 3, 70, 3, 5)
    with pytest.raises(ValueError, match="not inside"):
        runs(each, 4, 4)
