"""Tile size and batch within a limit: monotone, explained, refused with a remedy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import PlanError
from outsize.job import LimitsSection
from outsize.plan.choose import choose_predict, choose_train, window_pixels
from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.plan.plan import Plan, Tiling
from outsize.tiles.halo import Halo, Obstacle, Reach

MIB, GIB = 2**20, 2**30
HALO = Halo(Reach(30, 26), Reach(28, 24), 16)


def facts(
    halo: Halo = HALO, *, device: str = "cpu", weights_bytes: int = MIB, free_bytes: int = 64 * GIB
) -> Facts:
    machine = Machine(device, "a machine", free_bytes, free_bytes, 2, free_bytes)
    window = WindowFacts(256, weights_bytes, 200.0, 800.0, 3 * weights_bytes, "traced")
    return Facts(machine, window, halo)


def limits(host_bytes: int, **more: object) -> LimitsSection:
    return LimitsSection(host_memory=host_bytes, **more)  # type: ignore[arg-type]


def core_or_none(limit_bytes: int, scene_px: tuple[int, int], stride_px: int) -> int | None:
    halo = Halo(HALO.rows, HALO.cols, stride_px)
    try:
        plan = choose_predict(facts(halo), limits(limit_bytes), scene_px)
    except PlanError:
        return None
    assert plan.tiles is not None
    assert plan.peak_bytes <= limit_bytes
    assert plan.tiles.core_px % 16 == plan.tiles.core_px % stride_px == 0
    assert all(px % stride_px == 0 for px in plan.tiles.halo_before_px + plan.tiles.halo_after_px)
    return plan.tiles.core_px


@given(
    small=st.integers(MIB, 2 * GIB),
    more=st.integers(0, 2 * GIB),
    scene_px=st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    stride_px=st.sampled_from([1, 2, 16, 32, 48]),
)
def test_a_larger_limit_never_gives_a_smaller_core(
    small: int, more: int, scene_px: tuple[int, int], stride_px: int
) -> None:
    tight, loose = (core_or_none(each, scene_px, stride_px) for each in (small, small + more))
    assert tight is None or (loose is not None and tight <= loose)


def test_what_was_too_large_is_listed_with_its_need() -> None:
    plan = choose_predict(facts(), limits(64 * MIB), (5000, 5000))
    assert plan.tiles is not None
    assert plan.rejected
    sizes = [int(re.search(r"\d+", each.what)[0]) for each in plan.rejected]  # type: ignore[index]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > plan.tiles.core_px
    assert all("needs" in each.why and "may be used" in each.why for each in plan.rejected)
    assert any(f"core {plan.tiles.core_px} px" in reason for reason in plan.why)


@pytest.mark.parametrize(("length_px", "core_px"), [(1280, 640), (1024, 1024), (1000, 1024), (3000, 1024)])
def test_cores_share_a_scene_out_evenly(length_px: int, core_px: int) -> None:
    plan = choose_predict(facts(), limits(64 * GIB), (700, length_px))
    assert plan.tiles is not None
    assert plan.tiles.core_px == core_px


def test_the_machine_is_a_limit_too() -> None:
    assert choose_predict(facts(free_bytes=64 * MIB), limits(GIB), (5000, 5000)).limit_bytes == 64 * MIB
    assert choose_predict(facts(), LimitsSection(), (5000, 5000)).limit_bytes == 64 * GIB


def test_a_gpu_is_bound_by_gpu_memory() -> None:
    section = LimitsSection(host_memory=MIB, gpu_memory=2 * GIB)
    assert choose_predict(facts(device="cuda:0"), section, (5000, 5000)).limit_bytes == 2 * GIB


def test_an_obstacle_is_refused_by_name_or_marked() -> None:
    halo = Halo(HALO.rows, HALO.cols, 16, (Obstacle("encoder.0.1", "group_norm", "looks everywhere"),))
    with pytest.raises(PlanError, match=r"encoder\.0\.1 \(group_norm\): looks everywhere"):
        choose_predict(facts(halo), limits(GIB), (500, 500))
    plan = choose_predict(facts(halo), limits(GIB, allow_approximate=True), (500, 500))
    assert not plan.exact
    assert any("group_norm" in reason for reason in plan.why)


def test_a_short_halo_is_refused_or_marked() -> None:
    with pytest.raises(PlanError, match=r"found 12 px, needed 30 px.*leave limits.halo_px out"):
        choose_predict(facts(), limits(GIB, halo_px=12), (500, 500))
    plan = choose_predict(facts(), limits(GIB, halo_px=12, allow_approximate=True), (500, 500))
    assert plan.tiles is not None
    assert not plan.exact
    assert plan.tiles.halo_before_px == plan.tiles.halo_after_px == (16, 16)


def test_a_halo_as_long_as_needed_stays_exact() -> None:
    plan = choose_predict(facts(), limits(GIB, halo_px=30), (500, 500))
    assert plan.tiles is not None
    assert plan.exact
    assert (plan.tiles.halo_before_px, plan.tiles.halo_after_px) == ((32, 32), (32, 32))


def test_an_asked_tile_is_taken_as_it_is() -> None:
    plan = choose_predict(facts(), limits(GIB, tile_px=48), (500, 500))
    assert plan.tiles is not None
    assert plan.tiles.core_px == 48


@pytest.mark.parametrize(("stride_px", "asked_px", "remedy_px"), [(16, 100, 112), (1, 40, 48), (24, 64, 96)])
def test_an_asked_tile_off_the_stride_is_refused_with_the_next(
    stride_px: int, asked_px: int, remedy_px: int
) -> None:
    halo = Halo(HALO.rows, HALO.cols, stride_px)
    with pytest.raises(PlanError, match=rf"found {asked_px} px.*set limits.tile_px = {remedy_px}$"):
        choose_predict(facts(halo), limits(GIB, tile_px=asked_px), (500, 500))


def test_a_limit_below_the_weights_says_what_is_needed() -> None:
    with pytest.raises(PlanError, match=r"found 100.0 MiB, needed at least (\d+)\.\d MiB") as caught:
        choose_predict(facts(weights_bytes=200 * MIB), limits(100 * MIB), (500, 500))
    assert "host_memory" in str(caught.value)
    needed = float(re.search(r"at least ([\d.]+) MiB", str(caught.value))[1])  # type: ignore[index]
    # what the message asks for is enough
    choose_predict(facts(weights_bytes=200 * MIB), limits(int((needed + 0.1) * MIB)), (500, 500))


def test_an_asked_tile_that_does_not_fit_names_its_own_need() -> None:
    with pytest.raises(PlanError, match=r"leave limits\.tile_px out") as caught:
        choose_predict(facts(), limits(100 * MIB, tile_px=1024), (5000, 5000))
    needed = float(re.search(r"at least ([\d.]+) MiB", str(caught.value))[1])  # type: ignore[index]
    assert needed > 100
    plan = choose_predict(facts(), limits(int((needed + 0.1) * MIB), tile_px=1024), (5000, 5000))
    assert isinstance(plan, Plan)


def test_a_batch_too_large_names_the_batch_that_fits() -> None:
    with pytest.raises(PlanError, match=r"set train.batch = (\d+)") as caught:
        choose_train(facts(), limits(GIB), tile_px=256, batch=64)
    fits = int(re.search(r"train.batch = (\d+)", str(caught.value))[1])  # type: ignore[index]
    plan = choose_train(facts(), limits(GIB), tile_px=256, batch=fits)
    assert plan.exact
    assert plan.tiles is None
    with pytest.raises(PlanError):
        choose_train(facts(), limits(GIB), tile_px=256, batch=fits + 1)


def test_a_window_too_large_for_any_batch_asks_for_a_smaller_one() -> None:
    with pytest.raises(PlanError, match=r"set a smaller train.tile_px"):
        choose_train(facts(), limits(64 * MIB), tile_px=1024, batch=1)


def test_a_model_too_large_for_any_window_says_so() -> None:
    with pytest.raises(PlanError, match="smaller model") as caught:
        choose_train(facts(weights_bytes=100 * MIB), limits(100 * MIB), tile_px=64, batch=1)
    assert "train.tile_px" not in str(caught.value)


def test_a_window_is_never_larger_than_the_padded_scene() -> None:
    tiling = Tiling(256, (32, 32), (16, 16), 16)
    assert window_pixels(tiling, (1000, 1000)) == 304 * 304
    assert window_pixels(tiling, (100, 1000)) == 112 * 304
