"""Where training windows are drawn: anywhere, or where a rare class is; integers only, no pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.sampling.blocks import BlockIndex, areas_of
from outsize.data.scenes import LabelledScene
from outsize.tiles.window import Window
from outsize.units import Size, sides_of


@dataclass(frozen=True)
class EpochMix:
    """What an epoch is to be made of."""

    rare_share: float = 0.0  # of the windows, drawn where a rare class is
    empty_share: float = 1.0  # of the windows, at most, in which only one class is labelled

    @property
    def needs_index(self) -> bool:
        """Whether windows cannot be drawn without knowing where the classes are."""
        return self.rare_share > 0 or self.empty_share < 1


@dataclass(frozen=True)
class SceneWindow:
    """A window of one of several scenes."""

    scene: int
    window: Window


class Places:
    """Draws windows inside the areas of scenes; every draw depends on the generator given to it alone.

    A window that is to show a block lies anywhere around it, so that the block is at no preferred place in it:

        +-- area ---------------------------+
        |     +- window ------+             |
        |     |       +-----+ |             |
        |     |       |block| |             |
        |     |       +-----+ |             |
        |     +---------------+             |
        +-----------------------------------+
    """

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        index: BlockIndex | None = None,
        num_few: int = 1,
        *,
        shift_px: int = 0,
    ) -> None:
        self._areas = [(number, area) for number, scene in enumerate(scenes) for area in areas_of(scene)]
        self._wholes = [scene.image.window for scene in scenes]
        self._ends = np.cumsum([area.num_px for _, area in self._areas], dtype=np.float64)
        self.num_px = int(self._ends[-1])
        self._index, self._shift_px = index, shift_px
        self._rare: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        self._mixed = np.empty(0, np.int64)
        if index is not None:
            self._rare = [_weighted(index.num_px[:, each]) for each in rare_classes(index.num_px.sum(0))]
            self._mixed = np.flatnonzero((index.num_px > 0).sum(1) > num_few)

    def anywhere(self, rng: np.random.Generator, side_px: Size) -> SceneWindow:
        """Draw a window; every place in every area is equally likely."""
        scene, area = self._areas[_pick(rng, self._ends)]
        return self._around(rng, scene, area, area, side_px)

    def at_rare(self, rng: np.random.Generator, side_px: Size) -> SceneWindow:
        """Draw a rare class, all alike, then a block by how much of that class it has, and a window there."""
        blocks, ends = self._rare[int(rng.integers(len(self._rare)))]
        return self._at_block(rng, int(blocks[_pick(rng, ends)]), side_px)

    def at_mixed(self, rng: np.random.Generator, side_px: Size) -> SceneWindow:
        """Draw a window at a block of more than `num_few` classes; anywhere, where there is no such block."""
        if not self._mixed.size:
            return self.anywhere(rng, side_px)
        return self._at_block(rng, int(rng.choice(self._mixed)), side_px)

    def _at_block(self, rng: np.random.Generator, block: int, side_px: Size) -> SceneWindow:
        assert self._index is not None
        scene, area = self._areas[int(self._index.areas[block])]
        return self._around(rng, scene, area, Window(*self._index.windows[block].tolist()), side_px)

    def _around(
        self, rng: np.random.Generator, scene: int, area: Window, shown: Window, side_px: Size
    ) -> SceneWindow:
        height, width = sides_of(side_px)
        whole, shift_px = self._wholes[scene], self._shift_px
        row = _start(
            rng, (area.row, area.row_end), (shown.row, shown.row_end), height, shift_px, whole.row_end
        )
        col = _start(
            rng, (area.col, area.col_end), (shown.col, shown.col_end), width, shift_px, whole.col_end
        )
        return SceneWindow(scene, Window(row, col, height, width))


def rare_classes(num_px: NDArray[np.integer[Any]]) -> list[int]:
    """Return the classes that occur, but less than if all that occur were equally frequent."""
    present = np.flatnonzero(num_px)
    rare = [int(each) for each in present if num_px[each] * present.size < num_px.sum()]
    return rare or present.tolist()


def _weighted(num_px: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    blocks = np.flatnonzero(num_px)
    return blocks, np.cumsum(num_px[blocks], dtype=np.float64)


def _pick(rng: np.random.Generator, ends: NDArray[np.float64]) -> int:
    return min(int(np.searchsorted(ends, rng.random() * ends[-1], side="right")), ends.size - 1)


def _start(
    rng: np.random.Generator,
    area: tuple[int, int],
    shown: tuple[int, int],
    side_px: int,
    shift_px: int,
    whole_px: int,
) -> int:
    """Draw where a window begins that lies in `area` and holds `shown`, or lies in it where it is longer.

    One that covers its scene, of `whole_px`, begins with it, as in prediction: a network sees a grid of cells, and
    would learn pictures by another one than it is asked by.
    """
    spare_px = area[1] - area[0] - side_px
    if spare_px <= 0:  # centred on an area that it covers, or a little to a side
        middle = 0 if area == (0, whole_px) else area[0] + spare_px // 2
        return middle + (int(rng.integers(-shift_px, shift_px + 1)) if shift_px else 0)
    low, high = sorted((shown[1] - side_px, shown[0]))
    low, high = max(low, area[0]), min(high, area[1] - side_px)
    return int(rng.integers(low, high + 1))


class SampleCounts:
    """Counts what the samples of an epoch are made of."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.names = tuple(class_names)
        self.clear()

    def clear(self) -> None:
        """Begin another epoch."""
        self._num_samples, self._num_one_class = 0, 0
        self._num_px = np.zeros(len(self.names), np.int64)

    def add(self, counts: Sequence[float]) -> None:
        """Count samples, as `counted` gives them."""
        self._num_samples += int(counts[0])
        self._num_one_class += int(counts[1])
        self._num_px += np.array(counts[2:], np.int64)

    @staticmethod
    def counted(num_px: NDArray[np.integer[Any]]) -> list[float]:
        """Return what adds up of samples, given as pixels of each class (sample, class)."""
        num_one_class = int(np.count_nonzero((num_px > 0).sum(1) < 2))
        return [len(num_px), num_one_class, *num_px.sum(0).tolist()]

    def counts(self) -> dict[str, Any]:
        """Return all that was counted, to go on from."""
        return {
            "num_samples": self._num_samples,
            "num_one_class": self._num_one_class,
            "num_px": self._num_px.tolist(),
        }

    def take_up(self, counts: Mapping[str, Any]) -> None:
        """Go on from what was counted before."""
        self._num_samples, self._num_one_class = counts["num_samples"], counts["num_one_class"]
        self._num_px = np.array(counts["num_px"], np.int64)

    def as_dict(self) -> dict[str, Any]:
        """Return the share of each class in labelled pixels, and of samples with one class or none."""
        num_px, num_samples = max(1, int(self._num_px.sum())), max(1, self._num_samples)
        shares = {name: int(num) / num_px for name, num in zip(self.names, self._num_px, strict=True)}
        return {"one_class_share": self._num_one_class / num_samples, "class_shares": shares}
