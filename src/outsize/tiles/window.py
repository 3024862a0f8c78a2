"""A rectangle of pixels as a value, and a tile: the core that is kept inside the window that is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Rows [row, row + height) and columns [col, col + width) of an image."""

    row: int
    col: int
    height: int
    width: int

    @property
    def row_end(self) -> int:
        """First row below the window."""
        return self.row + self.height

    @property
    def col_end(self) -> int:
        """First column right of the window."""
        return self.col + self.width

    @property
    def num_px(self) -> int:
        """Pixels inside."""
        return self.height * self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        """Index of the window in an array whose last two axes are rows and columns."""
        return slice(self.row, self.row_end), slice(self.col, self.col_end)

    def intersect(self, other: Window) -> Window:
        """Return the common part; its height or width is 0 where there is none."""
        row, col = max(self.row, other.row), max(self.col, other.col)
        height = max(0, min(self.row_end, other.row_end) - row)
        width = max(0, min(self.col_end, other.col_end) - col)
        return Window(row, col, height, width)

    def within(self, outer: Window) -> Window:
        """Return the same pixels counted from the corner of `outer`."""
        return Window(self.row - outer.row, self.col - outer.col, self.height, self.width)


@dataclass(frozen=True, slots=True)
class Tile:
    """The core that is kept and the window that is read to compute it.

    +---------------- read ----------------+
    |  halo: read, computed, thrown away   |
    |      +---------- core ---------+     |
    |      |  kept and written       |     |
    |      +-------------------------+     |
    +--------------------------------------+
    """

    index: int
    core: Window
    read: Window


def middle_window(height: int, width: int, side_px: int) -> Window:
    """Return the middle of an image, at most `side_px` each way."""
    rows, cols = min(height, side_px), min(width, side_px)
    return Window((height - rows) // 2, (width - cols) // 2, rows, cols)
