"""Tiles cover a scene: cores part it, windows share one shape and hold what the cores need."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import PlanError
from outsize.tiles.grid import cover, redundancy, shards
from outsize.tiles.halo import Halo, Reach
from outsize.tiles.window import Window

reaches = st.builds(Reach, st.integers(0, 70), st.integers(0, 70))


@settings(deadline=None)
@given(data=st.data(), stride_px=st.sampled_from([1, 2, 3, 8, 16]), rows=reaches, cols=reaches)
def test_cover(data: st.DataObject, stride_px: int, rows: Reach, cols: Reach) -> None:
    core_px = stride_px * data.draw(st.integers(1, 12), label="strides in a core")
    height = data.draw(st.integers(1, 6 * core_px), label="height")
    width = data.draw(st.integers(1, 6 * core_px), label="width")
    tiles = cover(height, width, core_px, Halo(rows, cols, stride_px))
    times_covered = np.zeros((height, width), dtype=int)
    for tile in tiles:
        times_covered[tile.core.slices] += 1
    assert (times_covered == 1).all()
    assert [tile.index for tile in tiles] == list(range(len(tiles)))
    assert [(t.core.row, t.core.col) for t in tiles] == sorted((t.core.row, t.core.col) for t in tiles)
    assert len({(tile.read.height, tile.read.width) for tile in tiles}) == 1

    padded = Window(0, 0, height + -height % stride_px, width + -width % stride_px)
    for tile in tiles:
        core, read = tile.core, tile.read
        assert core.row % core_px == core.col % core_px == 0
        assert read.row % stride_px == read.col % stride_px == 0
        assert read.height % stride_px == read.width % stride_px == 0
        assert read.intersect(padded) == read
        # The need of a core that ends inside the scene; one that ends with it also needs the padding behind it.
        row_end = core.row_end if core.row_end < height else padded.height
        col_end = core.col_end if core.col_end < width else padded.width
        row, col = core.row - rows.before_px, core.col - cols.before_px
        need = Window(row, col, row_end + rows.after_px - row, col_end + cols.after_px - col).intersect(
            padded
        )
        assert need.intersect(read) == need
    assert redundancy(tiles, height, width) >= 1


@settings(deadline=None)
@given(data=st.data(), stride_px=st.sampled_from([1, 2, 3, 8, 16]), rows=reaches, cols=reaches)
def test_windows_that_end_with_the_scene(
    data: st.DataObject, stride_px: int, rows: Reach, cols: Reach
) -> None:
    core_px = stride_px * data.draw(st.integers(1, 12), label="strides in a core")
    scene = Window(0, 0, *(data.draw(st.integers(1, 6 * core_px), label=side) for side in ("rows", "cols")))
    halo = Halo(rows, cols, stride_px)
    tiles = cover(scene.height, scene.width, core_px, halo, pads=False)
    padded = cover(scene.height, scene.width, core_px, halo)
    assert [tile.core for tile in tiles] == [tile.core for tile in padded]
    assert len({(tile.read.height, tile.read.width) for tile in tiles}) <= 4  # few shapes share batches
    for tile, other in zip(tiles, padded, strict=True):
        core, read = tile.core, tile.read
        assert read.row % stride_px == read.col % stride_px == 0
        assert read.height % stride_px == 0 or read.row_end == scene.height
        assert read.width % stride_px == 0 or read.col_end == scene.width
        assert read.intersect(scene) == read
        row, col = core.row - rows.before_px, core.col - cols.before_px
        need = Window(row, col, core.row_end + rows.after_px - row, core.col_end + cols.after_px - col)
        need = need.intersect(scene)
        assert need.intersect(read) == need
        assert (read.height, read.width) <= (
            other.read.height,
            other.read.width,
        )  # memory is planned for these
        assert read.width <= other.read.width


def test_reads_are_core_and_halo_and_move_inward_at_borders() -> None:
    tiles = cover(1000, 1000, 256, Halo(Reach(94, 94), Reach(94, 94), 16))
    assert len(tiles) == 16
    inner = tiles[5]
    assert inner.core == Window(256, 256, 256, 256)
    assert inner.read == Window(160, 160, 448, 448)
    assert tiles[0].read == Window(0, 0, 448, 448)
    assert tiles[-1].core == Window(768, 768, 232, 232)
    assert tiles[-1].read == Window(560, 560, 448, 448)  # ends at 1008, the padded scene
    assert redundancy(tiles, 1000, 1000) == pytest.approx(16 * 448**2 / 1000**2)


def test_small_scene_is_one_padded_window_and_pairs_stand_for_halos() -> None:
    (tile,) = cover(50, 70, 256, (96, 96), stride_px=16)
    assert tile.read == Window(0, 0, 64, 80)
    assert tile.core == Window(0, 0, 50, 70)
    assert cover(500, 500, 64, (90, 96), stride_px=16) == cover(
        500, 500, 64, Halo(Reach(96, 96), Reach(96, 96), 16)
    )


@pytest.mark.parametrize("core_px", [0, 8, 100])
def test_core_that_does_not_fit_the_stride(core_px: int) -> None:
    with pytest.raises(PlanError, match="multiple of the model's stride, 16 px"):
        cover(500, 500, core_px, (96, 96), stride_px=16)


def test_scene_without_pixels() -> None:
    with pytest.raises(PlanError, match="0 x 10 px"):
        cover(0, 10, 16, (0, 0), stride_px=16)


@given(
    st.integers(1, 6),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_cores_part_a_picture_and_windows_hold_their_halo(
    stride: int, grid: tuple[int, int], more: tuple[int, int], reach: tuple[int, int]
) -> None:
    height, width = (num * stride + extra for num, extra in zip(grid, more, strict=True))
    halo = Halo(Reach(*reach), Reach(*reversed(reach)), stride)
    found = np.zeros((height, width), int)
    for tile in shards(height, width, grid, stride, halo):
        found[tile.core.slices] += 1
        assert tile.core.row % stride == tile.read.row % stride == 0
        assert tile.read.row == 0 or tile.core.row - tile.read.row >= halo.rows.before_px
        assert tile.read.col_end == width or tile.read.col_end - tile.core.col_end >= halo.cols.after_px
    assert (found == 1).all()
    assert len(shards(height, width, grid, stride)) == grid[0] * grid[1]


def test_what_is_left_of_the_strides_is_the_last_ones() -> None:
    rows = [(each.core.row, each.core.row_end) for each in shards(100, 16, (3, 1), 16)]
    assert rows == [(0, 32), (32, 64), (64, 100)]


def test_a_picture_with_fewer_strides_than_ranks_is_refused() -> None:
    with pytest.raises(
        PlanError, match="too small for 3 ranks along a side: found 64 px, needed at least 96 px"
    ):
        shards(64, 64, (3, 1), 32)
