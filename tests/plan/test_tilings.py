"""The ancestor's satellite scene, 10,000 x 10,000 px, cut for a U-Net of five levels."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from outsize.plan.predict.cores import cores_to_show, key_step
from outsize.plan.tilings import (
    as_table,
    core_for,
    list_cuts,
    remarks,
    train_cores,
    why_predicted_so,
    why_trained_so,
)
from outsize.tiles.halo import Halo, Reach

SCENE = (10_000, 10_000)
UNET = Halo(Reach(94, 94), Reach(94, 94), 16)


def cuts(planned_px: int = 1264):
    return list_cuts(
        SCENE,
        UNET,
        train_cores(10_000, planned_px, 16),
        peak_of=lambda window: 2_000 * window[0] * window[1],
        seconds_of=lambda window, num: num * window[0] * window[1] * 1e-8,
        budget_bytes=16e9,
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
    text = " ".join(remarks(eighth, SCENE, UNET))
    assert "94 px around" in text
    assert "the halo is 96 px" in text
    assert "1250 px is no multiple of 16 px: the core is 1264 px" in text


def test_the_table_marks_what_was_taken_and_what_is_too_large() -> None:
    found = cuts()
    lines = as_table(found, found[7]).splitlines()
    assert len(lines) == 17
    assert "too large" in lines[1]
    assert sum("<- taken" in line for line in lines) == 1


def test_what_is_said_of_a_core_agrees_with_the_table() -> None:
    found = cuts()
    largest, eighth = found[3], found[7]
    assert "largest tile that fits" in " ".join(why_predicted_so(largest, found, math.inf))
    [late] = why_predicted_so(eighth, found, 1264)
    assert "more than 1264 px are not taken for an image this large" in late
    assert f"at most {1 - largest.redundancy / eighth.redundancy:.0%} of the pixels" in late
    # nothing comes late in a picture: a larger core is not taken because it computes more
    [uneven] = why_predicted_so(eighth, found, math.inf)
    assert "compute more pixels" in uneven
    assert "late" not in uneven
    assert "see what was rejected" in " ".join(why_trained_so(eighth, found, 2**30))
    why = " ".join(why_trained_so(largest, found, 2**30))
    assert "such a tile needs 1.0 GiB" in why
    assert "larger ones were tried first" in why


def test_a_halo_that_was_asked_to_be_shorter_is_told() -> None:
    short = UNET.at_most(20)
    [cut] = list_cuts(
        SCENE, short.aligned, [2048], peak_of=lambda px: 1, seconds_of=lambda px, num: None, budget_bytes=2
    )
    assert cut.window_px == (2048 + 64, 2048 + 64)
    text = " ".join(remarks(cut, SCENE, UNET))
    assert "94 px around" in text
    assert "the halo is 32 px, for limits.halo_px asks for less" in text


@pytest.mark.parametrize(("length_px", "stride_px"), [(1126, 8), (1388, 64), (10_000, 1), (777, 24)])
def test_the_table_offers_what_the_key_takes(length_px: int, stride_px: int) -> None:
    cores = cores_to_show(length_px, key_step(stride_px), stride_px)
    assert all(core_px % key_step(stride_px) == 0 for core_px in cores)
    numbers = [-(-length_px // core_px) for core_px in cores]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


def test_numbers_that_round_to_one_core_are_one_cut() -> None:
    cores = train_cores(1024, 128, 32)
    numbers = [-(-1024 // core_px) for core_px in cores]
    assert len(set(cores)) == len(cores) == len(set(numbers))
    assert 128 in cores
