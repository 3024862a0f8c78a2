"""Covers a scene with tiles whose cores part it: windows of one shape for tiles, of a rank each for shards."""

from __future__ import annotations

from collections.abc import Iterable

from outsize.errors import PlanError, explain
from outsize.tiles.halo import Halo, Reach
from outsize.tiles.window import Tile, Window


def cover(
    height: int,
    width: int,
    core_px: int,
    halo: Halo | tuple[int, int],
    *,
    stride_px: int | None = None,
    pads: bool = True,
) -> tuple[Tile, ...]:
    """Cut a scene into tiles, row by row; a pair in place of a halo is (before, after) for both axes.

    Along one axis, with the scene padded by zeros to a multiple of the stride (p):

        scene    |===================================|p|
        core 0   |-----core-----|                            read: |------------------------|
        core 1                  |-----core-----|                     |------------------------|
        core 2                                 |--core--|              |-----------------------|

    Every window is core + halo long, or the padded scene where that is shorter. One that would leave
    the scene is moved inward instead: more surroundings than needed do no harm, one shape lets windows
    share a batch, and starts stay multiples of the stride, without which pooling falls out of phase.

    Without `pads` there is no p: such a window ends where the scene ends, and is shorter by up to a stride.
    """
    rows, cols = (halo.rows, halo.cols) if isinstance(halo, Halo) else (Reach(*halo), Reach(*halo))
    if stride_px is None:
        stride_px = halo.stride_px if isinstance(halo, Halo) else 1
    if core_px < stride_px or core_px % stride_px:
        needed = f"a multiple of the model's stride, {stride_px} px"
        raise PlanError(explain("tile core does not fit the model", f"{core_px} px", needed, "round it up"))
    if height < 1 or width < 1:
        found = f"{height} x {width} px"
        raise PlanError(
            explain("scene has no pixels", found, "at least one row and column", "check the scene")
        )
    row_spans = _spans(height, core_px, rows, stride_px, pads)
    col_spans = _spans(width, core_px, cols, stride_px, pads)
    tiles: list[Tile] = []
    for row, num_rows, read_row, num_read_rows in row_spans:
        for col, num_cols, read_col, num_read_cols in col_spans:
            core = Window(row, col, num_rows, num_cols)
            read = Window(read_row, read_col, num_read_rows, num_read_cols)
            tiles.append(Tile(len(tiles), core, read))
    return tuple(tiles)


def redundancy(tiles: Iterable[Tile], height: int, width: int) -> float:
    """Return how many pixels are computed for each pixel of the scene."""
    return sum(tile.read.num_px for tile in tiles) / (height * width)


def _spans(
    length: int, core_px: int, reach: Reach, stride_px: int, pads: bool
) -> list[tuple[int, int, int, int]]:
    """Return (core start, core length, read start, read length) of each tile along one axis."""
    reach = reach.aligned(stride_px)
    end = length + -length % stride_px if pads else length
    read_length = min(reach.before_px + core_px + reach.after_px, end)
    last = end - read_length
    last += -last % stride_px  # a start is a multiple of the stride, also where the end is none
    spans = []
    for start in range(0, length, core_px):
        read_start = max(0, min(start - reach.before_px, last))
        spans.append((start, min(core_px, length - start), read_start, min(read_length, end - read_start)))
    return spans


def shards(
    height: int, width: int, grid: tuple[int, int], stride_px: int, halo: Halo | None = None
) -> tuple[Tile, ...]:
    """Return the parts of a picture row by row: cores of whole strides, as even as they can be.

        grid 2 x 2   | core 0 | core 1 |    what is left over of the strides is the last one's;
                     | core 2 | core 3 |    windows end where the picture ends

    Starts are multiples of the stride, so that at every resolution of a network each row is one rank's.
    """
    need = None if halo is None else halo.aligned
    rows = _stretches(height, grid[0], stride_px, Reach(0, 0) if need is None else need.rows)
    cols = _stretches(width, grid[1], stride_px, Reach(0, 0) if need is None else need.cols)
    return tuple(
        Tile(
            row * len(cols) + col,
            Window(top.start, left.start, len(top), len(left)),
            Window(read_top.start, read_left.start, len(read_top), len(read_left)),
        )
        for row, (top, read_top) in enumerate(rows)
        for col, (left, read_left) in enumerate(cols)
    )


def _stretches(length: int, num: int, stride_px: int, reach: Reach) -> list[tuple[range, range]]:
    """Return the core and what is read for it of each part along one axis."""
    num_strides = length // stride_px
    if num_strides < num:
        found, need = f"{length} px", f"at least {num * stride_px} px, {stride_px} for each"
        remedy = "use fewer ranks, or larger pictures"
        raise PlanError(explain(f"a picture is too small for {num} ranks along a side", found, need, remedy))
    starts = [number * num_strides // num * stride_px for number in range(num)]
    return [
        (range(start, stop), range(max(0, start - reach.before_px), min(length, stop + reach.after_px)))
        for start, stop in zip(starts, [*starts[1:], length], strict=True)
    ]
