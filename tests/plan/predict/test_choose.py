"""Tile size and batch within a limit: monotone, explained, refused with a remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import PlanError
from outsize.job import LimitsSection
from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.plan.limits import USABLE, usable_bytes
from outsize.plan.plan import Plan, Tiling
from outsize.plan.predict.choose import choose_predict, seconds_of_windows, window_pixels
from outsize.plan.predict.cores import cores_to_try
from outsize.plan.step import StepFacts
from outsize.plan.way import StepRequest
from outsize.plan.ways.fitting import choose_train
from outsize.tiles.grid import cover
from outsize.tiles.halo import Halo, Obstacle, Reach
from outsize.tiles.window import Window

MIB, GIB = 2**20, 2**30
HALO = Halo(Reach(30, 26), Reach(28, 24), 16)


def facts(
    halo: Halo = HALO, *, device: str = "cpu", weights_bytes: int = MIB, free_bytes: int = 64 * GIB
) -> Facts:
    machine = Machine(device, "a machine", 64 * GIB, free_bytes, 2, free_bytes)
    window = WindowFacts(256, weights_bytes, 0, 200.0, 1000.0, 0.0, 1e-9)
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


@pytest.mark.parametrize(("length_px", "core_px"), [(1280, 640), (1024, 512), (3000, 1024), (1126, 576)])
def test_cores_share_a_scene_out_evenly(length_px: int, core_px: int) -> None:
    # memory for a window of 1124 px, and for none of 1136
    plan = choose_predict(
        facts(), limits(343 * MIB if length_px > 2000 else 200 * MIB), (length_px, length_px)
    )
    assert plan.tiles is not None
    assert plan.tiles.core_px == core_px


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("scene_px", [(1058, 1126), (1024, 2048), (2048, 2048), (300, 20)])
def test_a_picture_that_fits_is_not_cut(device: str, scene_px: tuple[int, int]) -> None:
    plan = choose_predict(facts(device=device), LimitsSection(), scene_px)
    assert plan.tiles is not None
    assert len(cover(*scene_px, plan.tiles.core_px, plan.tiles.halo)) == 1
    assert any("fits" in reason and "whole" in reason for reason in plan.why)
    assert not any("largest of those" in reason for reason in plan.why)


@pytest.mark.parametrize(("device", "core_px"), [("cpu", 1024), ("cuda:0", 2048)])
@pytest.mark.parametrize("side_px", [10_000, 20_000])
def test_a_huge_scene_is_cut_as_was_measured_to_be_fast(device: str, core_px: int, side_px: int) -> None:
    plan = choose_predict(facts(device=device), LimitsSection(), (side_px, side_px))
    assert plan.tiles is not None
    assert plan.tiles.core_px == core_px
    assert f"core {core_px} px is the largest that an image of" in plan.why[-1]


@given(
    limit_mib=st.integers(8, 4000),
    scene_px=st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    stride_px=st.sampled_from([1, 8, 48]),
    device=st.sampled_from(["cpu", "cuda:0"]),
)
def test_nothing_that_fits_computes_less(
    limit_mib: int, scene_px: tuple[int, int], stride_px: int, device: str
) -> None:
    known = facts(Halo(HALO.rows, HALO.cols, stride_px), device=device)
    section = LimitsSection(host_memory=limit_mib * MIB, gpu_memory=limit_mib * MIB)
    try:
        plan = choose_predict(known, section, scene_px)
    except PlanError:
        return
    assert plan.tiles is not None

    def computed_px(tiling: Tiling) -> int:
        return window_pixels(tiling, scene_px) * math.prod(-(-each // tiling.core_px) for each in scene_px)

    for core_px in cores_to_try(device.partition(":")[0], scene_px, stride_px):
        other = Tiling.of(core_px, known.halo)
        fits = known.window.peak_bytes(window_pixels(other, scene_px)) <= usable_bytes(known.machine, section)
        assert not fits or computed_px(other) >= computed_px(plan.tiles)


def test_calls_of_the_host_are_shared_by_the_tiles_of_a_batch() -> None:
    known = facts(device="cuda:0")
    window = replace(known.window, host_s=0.01, predict_s_per_px=1e-8)
    # 512 x 512 px take 2.6 ms, and 32 of them make a batch
    many_s = seconds_of_windows(replace(known, window=window), 33, 512 * 512, 8 * GIB)
    assert many_s == pytest.approx(32 * 512 * 512 * 1e-8 + 0.01)
    assert seconds_of_windows(replace(known, window=replace(window, fixed_s=None)), 33, 512, 8 * GIB) is None


def test_the_machine_is_a_limit_too() -> None:
    assert choose_predict(facts(free_bytes=64 * MIB), limits(GIB), (5000, 5000)).limit_bytes == 64 * MIB
    assert choose_predict(facts(), LimitsSection(), (5000, 5000)).limit_bytes == 64 * GIB
    with pytest.raises(
        PlanError, match=r"host_memory is more than this machine has: found 65.0 GiB, needed at most 64.0"
    ):
        choose_predict(facts(), limits(65 * GIB), (5000, 5000))


def test_a_gpu_is_bound_by_gpu_memory() -> None:
    section = LimitsSection(host_memory=MIB, gpu_memory=2 * GIB)
    assert choose_predict(facts(device="cuda:0"), section, (5000, 5000)).limit_bytes == 2 * GIB


def test_an_obstacle_is_refused_by_name_or_marked() -> None:
    halo = Halo(HALO.rows, HALO.cols, 16, (Obstacle("encoder.0.1", "group_norm", "looks everywhere"),))
    with pytest.raises(PlanError, match=r"encoder\.0\.1 \(group_norm\): looks everywhere"):
        choose_predict(facts(halo), limits(GIB), (5000, 5000))
    plan = choose_predict(facts(halo), limits(GIB, allow_approximate=True), (5000, 5000))
    assert not plan.exact
    assert any("group_norm" in reason for reason in plan.why)


@pytest.mark.parametrize("allow_approximate", [False, True])
def test_what_looks_at_the_whole_picture_is_exact_where_a_window_is_one(allow_approximate: bool) -> None:
    halo = Halo(HALO.rows, HALO.cols, 16, (Obstacle("encoder.0.1", "group_norm", "looks everywhere"),))
    plan = choose_predict(facts(halo), limits(GIB, allow_approximate=allow_approximate), (365, 500))
    assert plan.tiles is not None
    assert plan.exact
    assert any("a whole picture" in reason for reason in plan.why)
    [tile] = cover(365, 500, plan.tiles.core_px, plan.tiles.halo)
    # nothing is added that the model would look at, too
    assert tile.read == tile.core == Window(0, 0, 365, 500)
    # memory for parts only
    small = limits(40 * MIB, allow_approximate=allow_approximate)
    if allow_approximate:
        assert not choose_predict(facts(halo), small, (500, 500)).exact
    else:
        with pytest.raises(PlanError, match="memory for the whole scene in one window"):
            choose_predict(facts(halo), small, (500, 500))


@pytest.mark.parametrize(("device", "scene_px"), [("cpu", (1040, 1388)), ("cuda:0", (1536, 2048))])
def test_exact_comes_before_approximate(device: str, scene_px: tuple[int, int]) -> None:
    halo = Halo(Reach(128, 128), Reach(128, 128), 64, (Obstacle("the model", "objects", "are joined"),))
    plan = choose_predict(facts(halo, device=device), LimitsSection(allow_approximate=True), scene_px)
    assert plan.exact
    assert not any(reason.startswith("approximate") for reason in plan.why)


def test_a_whole_picture_beyond_the_cores_that_are_tried_can_be_asked_for() -> None:
    halo = Halo(HALO.rows, HALO.cols, 48, (Obstacle("encoder.0.1", "group_norm", "looks everywhere"),))
    with pytest.raises(PlanError, match=r"set limits\.tile_px = 5040 to try it in one window"):
        choose_predict(facts(halo), limits(GIB), (5000, 5000))
    plan = choose_predict(facts(halo), limits(8 * GIB, tile_px=5040), (5000, 5000))
    assert plan.exact
    assert plan.tiles is not None
    [tile] = cover(5000, 5000, plan.tiles.core_px, plan.tiles.halo)
    assert tile.read == Window(0, 0, 5000, 5000)
    # where memory is what lacks, asking is no help
    with pytest.raises(PlanError, match="one window; choose another setting of the model"):
        choose_predict(facts(halo), limits(GIB // 4, tile_px=5040), (5000, 5000))


def test_a_short_halo_is_refused_or_marked() -> None:
    with pytest.raises(PlanError, match=r"found 12 px, needed 30 px.*leave limits.halo_px out"):
        choose_predict(facts(), limits(GIB, halo_px=12), (500, 500))
    short = limits(GIB, halo_px=12, allow_approximate=True)
    plan = choose_predict(facts(), short.model_copy(update={"tile_px": 128}), (500, 500))
    assert plan.tiles is not None
    assert not plan.exact
    assert plan.tiles.halo_before_px == plan.tiles.halo_after_px == (16, 16)
    # one window has nothing around it that could lack
    whole = choose_predict(facts(), short, (500, 500))
    assert whole.exact
    assert not any("approximate" in reason for reason in whole.why)


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


def task(chain: Callable[..., StepFacts], **changes: object) -> StepRequest:
    asked = StepRequest(batch=4, side_px=256, step_of=chain, op_s=lambda op: 1e-6, halo=HALO)
    return replace(asked, **changes)  # type: ignore[arg-type]


def test_training_that_fits_is_planned_plain(chain: Callable[..., StepFacts]) -> None:
    plan = choose_train(facts(), limits(GIB), task(chain))
    assert plan.exact
    assert (plan.purpose, plan.batch, plan.tiles, plan.recompute) == ("train", 4, None, None)
    assert plan.peak_bytes <= 0.7 * GIB


def test_what_only_approximate_ways_can_do_is_refused_with_the_way_to_allow_them(
    chain: Callable[..., StepFacts],
) -> None:
    asked = task(chain, across_samples="bn looks across", across_pixels="bn looks across")
    with pytest.raises(
        PlanError, match=r"allow_approximate = true, which fits by .*micro-batches .*bn looks across"
    ):
        choose_train(facts(), limits(60 * MIB), asked)
    plan = choose_train(facts(), limits(60 * MIB, allow_approximate=True), asked)
    assert not plan.exact
    assert plan.peak_bytes <= plan.limit_bytes


def test_a_step_that_nothing_makes_fit_asks_for_a_smaller_one(chain: Callable[..., StepFacts]) -> None:
    with pytest.raises(PlanError, match=r"4 windows of 256 px.*at least .* by .*set a smaller train.tile_px"):
        choose_train(facts(), limits(3 * MIB), task(chain))


def test_a_batch_too_large_names_one_that_fits(chain: Callable[..., StepFacts]) -> None:
    asked = task(chain, batch=64, across_samples="bn looks across", across_pixels="bn looks across")
    with pytest.raises(PlanError, match=r"set train.batch = (\d+)") as caught:
        choose_train(facts(), limits(GIB), asked)
    fits = int(re.search(r"train.batch = (\d+)", str(caught.value))[1])  # type: ignore[index]
    assert 1 < fits < 64
    assert choose_train(facts(), limits(GIB), replace(asked, batch=fits)).recompute is None


def test_a_batch_is_named_only_if_it_fits(chain: Callable[..., StepFacts]) -> None:
    """Where most of a step is the same for any batch, a share of it for each sample says nothing."""
    asked = task(
        lambda batch, side_px: chain(batch + 60, side_px),
        batch=4,
        across_samples="bn looks across",
        across_pixels="bn looks across",
    )
    with pytest.raises(PlanError, match="does not fit") as caught:
        choose_train(facts(), limits(GIB), asked)
    assert "train.batch" not in str(caught.value)


def test_a_model_too_large_for_any_window_says_so(chain: Callable[..., StepFacts]) -> None:
    with pytest.raises(PlanError, match="smaller model"):
        choose_train(facts(weights_bytes=100 * MIB), limits(MIB), task(chain))


def test_a_window_is_never_larger_than_the_padded_scene() -> None:
    tiling = Tiling(256, (32, 32), (16, 16), 16)
    assert window_pixels(tiling, (1000, 1000)) == 304 * 304
    assert window_pixels(tiling, (100, 1000)) == 112 * 304


def test_what_lives_beside_a_prediction_takes_room(chain: Callable[..., StepFacts]) -> None:
    alone = choose_predict(facts(), limits(64 * MIB), (5000, 5000))
    beside = choose_predict(facts(), limits(64 * MIB), (5000, 5000), resident_bytes=40 * MIB)
    assert alone.tiles is not None
    assert beside.tiles is not None
    assert beside.tiles.core_px < alone.tiles.core_px
    assert beside.peak_bytes > 40 * MIB


def test_the_share_that_a_real_step_has_shown_takes_the_place_of_the_usual_one() -> None:
    usual = Machine("cuda:0", "a card", 64 * GIB, 32 * GIB, 2, GIB)
    seen = replace(usual, usable_share=0.93)
    assert usable_bytes(usual, LimitsSection()) == USABLE["cuda"] * 32 * GIB
    assert usable_bytes(seen, LimitsSection()) == 0.93 * 32 * GIB


def test_more_memory_may_be_had_otherwise_than_by_a_limit(chain: Callable[..., StepFacts]) -> None:
    asked = task(chain, across_samples="bn looks across", across_pixels="bn looks across")
    with pytest.raises(PlanError) as caught:
        choose_train(facts(), limits(60 * MIB), asked, for_more="give ours more with --budgets")
    assert str(caught.value).endswith(", or give ours more with --budgets")
    assert "host_memory" not in str(caught.value)
    assert "limits.allow_approximate = true" in str(caught.value)
    with pytest.raises(PlanError, match=r"limits.host_memory is more than this machine has.*lower it"):
        choose_train(facts(), limits(65 * GIB), asked, for_more="give ours more with --budgets")
