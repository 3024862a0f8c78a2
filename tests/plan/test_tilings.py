"""The ancestor's satellite scene, 10,000 x 10,000 px, cut for a U-Net of five levels."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outsize.plan.tilings import as_table, core_for, list_cuts, remarks
from outsize.tiles.halo import Halo, Reach

SCENE = (10_000, 10_000)
UNET = Halo(Reach(94, 94), Reach(94, 94), 16)


def cuts(planned_px: int = 1264):
    return list_cuts(
        SCENE,
        UNET,
        peak_of=lambda window: 2_000 * window[0] * window[1],
        seconds_of=lambda window: window[0] * window[1] * 1e-8,
        budget_bytes=16e9,
        planned_px=planned_px,
    )


def test_the_planned_core_is_among_them() -> None:
    assert [cut.num_per_side for cut in cuts()] == list(range(1, 17))
    assert [cut.tiling.core_px for cut in cuts(2048)][4] == 2048
    assert [cut.num_per_side for cut in cuts(512)][-1] == 20
    assert [cut.fits for cut in cuts()][:5] == [False, False, False, True, True]


def test_redundancy_and_time_grow_with_the_number_of_tiles() -> None:
    found = cuts()
    assert found[0].redundancy == 1.0
    assert found[7].redundancy == pytest.approx((8 * (1264 + 2 * 96) / 10_000) ** 2)
    assert all(one.redundancy < two.redundancy for one, two in pairwise(found))
    assert all(one.image_s < two.image_s for one, two in pairwise(found))


def test_cores_and_windows_are_multiples_of_the_stride() -> None:
    assert core_for(10_000, 8, 16) == 1264
    for cut in cuts():
        assert cut.tiling.core_px % 16 == 0
        assert cut.window_px[0] % 16 == 0
        assert cut.tiling.core_px * cut.num_per_side >= 10_000


def test_it_says_why_92_is_96_and_1250_is_not_to_be_had() -> None:
    eighth = cuts()[7]
    text = " ".join(remarks(eighth, cuts(), SCENE, UNET))
    assert "94 px around" in text
    assert "the halo is 96 px" in text
    assert "1250 px is no multiple of 16 px: the core is 1264 px" in text


def test_the_table_marks_what_was_taken_and_what_is_too_large() -> None:
    found = cuts()
    lines = as_table(found, found[7]).splitlines()
    assert len(lines) == 17
    assert "too large" in lines[1]
    assert sum("<- taken" in line for line in lines) == 1


def test_numbers_that_round_to_one_core_are_one_cut() -> None:
    found = list_cuts(
        (1024, 1024),
        Halo(Reach(30, 30), Reach(30, 30), 32),
        peak_of=lambda px: 1,
        seconds_of=lambda px: None,
        budget_bytes=2,
        planned_px=128,
    )
    cores = [cut.tiling.core_px for cut in found]
    assert len(set(cores)) == len(cores)
    assert all(-(-1024 // cut.tiling.core_px) == cut.num_per_side for cut in found)
    assert 128 in cores
