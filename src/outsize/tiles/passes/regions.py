"""Which part of every map a tile needs in one pass: walked backwards from what the tile is there for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outsize.tiles.passes.layout import PassGraph
from outsize.tiles.window import Window

Interval = tuple[int, int]


@dataclass(frozen=True)
class TileWork:
    """One tile of one pass: what it reads, makes, and is there for."""

    core: Window  # of the picture
    regions: Mapping[int, Window]  # of maps: what is read of the scene or of kept maps, and what is made
    kept: Mapping[
        int, Window
    ]  # its own part of maps that later passes read; parts of all tiles make up the map
    pooled: Mapping[int, Window]  # its own part of maps whose numbers are added up, by who adds them


class Walk:
    """The tiles of one pass over a picture; rows and columns are walked apart, once each."""

    def __init__(self, laid: PassGraph, number: int, core_px: int) -> None:
        self.laid, self.number = laid, number
        height, width = laid.size
        self.rows = _cuts(height, core_px)
        self.cols = _cuts(width, core_px)
        self.made = laid.made(number)
        self._row_needs = [self._needs(0, each) for each in self.rows]
        self._col_needs = [self._needs(1, each) for each in self.cols]

    @property
    def num_tiles(self) -> int:
        """How many tiles there are."""
        return len(self.rows) * len(self.cols)

    def works(self) -> list[TileWork]:
        """Return all tiles, row by row."""
        return [self.work(row, col) for row in range(len(self.rows)) for col in range(len(self.cols))]

    def work(self, row: int, col: int) -> TileWork:
        """Return the tile of a row and a column of tiles."""
        (top, bottom), (left, right) = self.rows[row], self.cols[col]
        core = Window(top, left, bottom - top, right - left)
        down, across = self._row_needs[row], self._col_needs[col]
        regions = {index: _window(down[index], across[index]) for index in down if index in across}
        kept = {index: self.part(index, core) for index in self.laid.kept[self.number]}
        pooled = {index: self.part(self._source(index), core) for index in self.laid.pooled[self.number]}
        return TileWork(core, regions, _not_empty(kept), _not_empty(pooled))

    def part(self, index: int, core: Window) -> Window:
        """Return a tile's own part of a map: parts of all tiles lie side by side and leave nothing out."""
        sizes, whole = self.laid.map(index).sizes, self.laid.size
        down = _share((core.row, core.row_end), sizes[0], whole[0])
        return _window(down, _share((core.col, core.col_end), sizes[1], whole[1]))

    def lengths(self, index: int) -> tuple[int, int]:
        """Return how many rows and columns of a map are made, added up over tiles."""
        return tuple(  # type: ignore[return-value]
            sum(hi - lo for needs in each if index in needs for lo, hi in (needs[index],))
            for each in (self._row_needs, self._col_needs)
        )

    def largest(self, index: int) -> tuple[int, int]:
        """Return the most rows and columns of a map that one tile has."""
        return tuple(  # type: ignore[return-value]
            max((hi - lo for needs in each if index in needs for lo, hi in (needs[index],)), default=0)
            for each in (self._row_needs, self._col_needs)
        )

    def _source(self, pool: int) -> int:
        return self.laid.maps_of(pool)[0]

    def _needs(self, which: int, core: Interval) -> dict[int, Interval]:
        """Return the interval of every map along one axis; what is not needed at all is left out."""
        laid, number = self.laid, self.number
        whole = laid.size[which]
        needs: dict[int, Interval] = {}

        def want(index: int, interval: Interval) -> None:
            size = laid.map(index).sizes[which]
            lo = min(max(interval[0], 0), size - 1)
            hi = max(min(interval[1], size), lo + 1)
            known = needs.get(index, (lo, hi))
            needs[index] = min(lo, known[0]), max(hi, known[1])

        wanted = [*laid.kept[number], *map(self._source, laid.pooled[number])]
        for index in wanted:
            lo, hi = _share(core, laid.map(index).sizes[which], whole)
            if hi > lo:
                want(index, (lo, hi))
        if number == laid.num_passes - 1:
            want(laid.output, core)
        for index in reversed(self.made):
            if index in needs:
                span = laid.parts[index].needs[which]
                for each in laid.maps_of(index):
                    want(each, span(*needs[index]))
        return needs


def _cuts(length: int, core_px: int) -> list[Interval]:
    return [(start, min(start + core_px, length)) for start in range(0, length, core_px)]


def _share(core: Interval, size: int, whole: int) -> Interval:
    return core[0] * size // whole, core[1] * size // whole


def _window(down: Interval, across: Interval) -> Window:
    return Window(down[0], across[0], down[1] - down[0], across[1] - across[0])


def _not_empty(windows: Mapping[int, Window]) -> dict[int, Window]:
    return {index: each for index, each in windows.items() if each.num_px}
