"""How single operations run on parts, and what rows they need."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.graph import Op, Setting
from outsize.tiles.arguments import pad_amounts, resize_ratio, slice_of
from outsize.tiles.passes.inside import join
from outsize.tiles.passes.parts import Map, PassOperand, Role
from outsize.tiles.passes.rules import part_of

PLACE = Map((2, 3), (40, 60))


def op(
    kind: str, shape: tuple[int, ...], settings: Mapping[str, Setting] | None = None, index: int = 1
) -> Op:
    return Op(index, kind, "", 0, (0,), shape, settings or {})


def on_map(shape: tuple[int, ...] = (1, 8, 40, 60)) -> PassOperand:
    return PassOperand(op("relu", shape, index=0), PLACE)


def whole(shape: tuple[int, ...]) -> PassOperand:
    return PassOperand(op("parameter", shape, index=0), None)


WINDOW: dict[str, Setting] = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}


def test_what_adds_up_is_a_pool() -> None:
    assert part_of(op("mean", (1, 8), {"dim": (2, 3)}), [on_map()]).role is Role.POOL
    assert part_of(op("adaptive_avg_pool", (1, 8, 6, 6), {}), [on_map()]).role is Role.POOL
    assert part_of(op("mean", (1, 40, 60), {"dim": (1,)}), [on_map()]).role is Role.LOCAL
    assert part_of(op("mean", (1, 8, 40), {"dim": (3,)}), [on_map()]).role is Role.WHOLE
    kernel: dict[str, Setting] = {**WINDOW, "kernel": (40, 60), "padding": (0, 0)}
    assert part_of(op("avg_pool", (1, 8, 1, 1), kernel), [on_map()]).role is Role.POOL


def test_what_has_no_rule_waits_for_the_whole() -> None:
    assert part_of(op("fft_fft2", (1, 8, 40, 60)), [on_map()]).role is Role.WHOLE
    assert part_of(op("softmax", (1, 8, 40, 60), {"dim": 3}), [on_map()]).role is Role.WHOLE
    assert part_of(op("softmax", (1, 8, 40, 60), {"dim": 1}), [on_map()]).role is Role.LOCAL
    assert part_of(op("fft_fft2", (8,)), [whole((8,))]).role is Role.PLAIN


def test_operands_lie_alike_or_are_one_value() -> None:
    assert join(op("add", (1, 8, 40, 60)), [on_map(), whole((8, 1, 1))]).role is Role.LOCAL
    assert join(op("add", (1, 8, 40, 60)), [on_map(), whole((40, 60))]).role is Role.LOCAL
    turned = PassOperand(op("permute", (1, 8, 60, 40), index=0), Map((3, 2), (40, 60)))
    assert join(op("add", (1, 8, 40, 60)), [on_map(), turned]).role is Role.WHOLE


def test_a_strided_convolution_needs_its_window() -> None:
    part = part_of(op("conv", (1, 8, 20, 30), WINDOW), [on_map(), whole((8, 8, 3, 3))])
    assert part.map == Map((2, 3), (20, 30))
    assert part.needs[0](3, 5) == (5, 10)


def test_a_resize_between_corners_needs_rows_by_the_size_of_the_whole() -> None:
    settings: dict[str, Setting] = {"mode": "bilinear", "align_corners": True, "scales": None}
    part = part_of(op("upsample", (1, 8, 157, 60), settings), [on_map()])
    assert part.map == Map((2, 3), (157, 60))
    for row in (0, 50, 100, 156):
        place = row * 39 / 156
        lo, hi = part.needs[0](row, row + 1)
        assert lo <= int(place)
        assert hi >= min(int(place) + 2, 40)
        assert hi - lo <= 8  # and not the whole
    assert resize_ratio(op("upsample", (), {"scales": (2.0, 3.0)}), 1) == 3.0


def test_settings_of_padding_and_slicing() -> None:
    assert pad_amounts((1, 2, 3, 4), 4, 2) == (3, 4)
    assert pad_amounts((1, 2), 4, 2) == (0, 0)
    assert slice_of(op("slice", (), {"dim": 2, "start": -10, "step": 2}), (1, 8, 40, 60)) == (2, 30, 2)
