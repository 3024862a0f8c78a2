"""Adds up over tiles what an operation says of the whole picture: sums, largest values, means and variances.

Every tile gives its own part of the map, so nothing is counted twice; what parts give is added in double precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outsize.graph import Op
from outsize.tiles.passes import Map
from outsize.tiles.window import Window


class Pool:
    """One operation whose answer is put together from all parts of a map."""

    def __init__(self, op: Op, source: Map, settings: dict[str, Any]) -> None:
        self._op, self._source, self._settings = op, source, settings
        self._total: Tensor | None = None
        self._bins = op.kind.startswith("adaptive")
        self._largest = op.kind in ("adaptive_max_pool", "max_pool", "amax", "max")
        self._smallest = op.kind in ("amin", "min")
        self._window_pool = op.kind in ("max_pool", "avg_pool")

    def add(self, part: Tensor, window: Window) -> None:
        """Add a tile's own part of the map."""
        if self._bins:
            self._add_to_bins(part, window)
            return
        self._merge(self._reduced(part, self._dims(part)), ...)

    def result(self, dtype: torch.dtype) -> Any:
        """Return the answer, in the shape that the operation gives it."""
        assert self._total is not None
        total = self._total
        num_px = self._source.sizes[0] * self._source.sizes[1]
        if self._op.kind == "adaptive_avg_pool":
            sizes = [
                torch.tensor([hi - lo for lo, hi in bins], dtype=total.dtype, device=total.device)
                for bins in self._all_bins(total)
            ]
            total = total / (sizes[0][:, None] * sizes[1])
        elif self._op.kind == "mean":
            total = total / self._count
        elif self._op.kind == "avg_pool":
            total = total / (self._settings.get("divisor_override") or num_px)
        elif self._op.kind == "linalg_vector_norm":
            total = total.sqrt()
        total = total.reshape(self._op.shape).to(dtype)
        return (total, None) if self._several else total

    @property
    def _several(self) -> bool:
        return self._op.kind == "adaptive_max_pool" or bool(self._settings.get("several"))

    def _dims(self, part: Tensor) -> list[int]:
        if self._window_pool:
            return [-2, -1]
        return list(self._op.ints("dim")) or list(range(part.dim()))

    def _reduced(self, part: Tensor, dims: list[int]) -> Tensor:
        if self._largest:
            return part.amax(dims, keepdim=True)
        if self._smallest:
            return part.amin(dims, keepdim=True)
        self._count = self._num_summed(part, dims)
        if self._op.kind == "linalg_vector_norm":
            return part.double().square().sum(dims, keepdim=True)
        return part.sum(dims, keepdim=True, dtype=torch.float64)

    def _num_summed(self, part: Tensor, dims: list[int]) -> int:
        """Count the numbers of the whole that go into one mean."""
        rows, cols = self._source.axes
        sizes = list(part.shape)
        sizes[rows], sizes[cols] = self._source.sizes
        count = 1
        for dim in {each % part.dim() for each in dims}:
            count *= sizes[dim]
        return count

    def _merge(self, more: Tensor, where: Any) -> None:
        if self._total is None:
            self._total = more
        elif self._largest:
            self._total[where] = torch.maximum(self._total[where], more)
        elif self._smallest:
            self._total[where] = torch.minimum(self._total[where], more)
        else:
            self._total[where] += more

    def _add_to_bins(self, part: Tensor, window: Window) -> None:
        if self._total is None:
            shape = (*part.shape[:-2], *self._op.shape[-2:])
            kind, fill = (part.dtype, float("-inf")) if self._largest else (torch.float64, 0.0)
            self._total = torch.full(shape, fill, dtype=kind, device=part.device)
        rows, cols = self._all_bins(self._total)
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(cols):
                common = window.intersect(Window(top, left, bottom - top, right - left))
                if common.num_px:
                    down, across = common.within(window).slices
                    self._merge(self._reduced(part[..., down, across], [-2, -1])[..., 0, 0], (..., i, j))

    def _all_bins(self, total: Tensor) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the rows and the columns of each bin, as torch cuts them: neighbours may share one."""
        rows, cols = (
            [(i * size // num, -(-(i + 1) * size // num)) for i in range(num)]
            for size, num in zip(self._source.sizes, total.shape[-2:], strict=True)
        )
        return rows, cols


class Statistics:
    """Mean and variance of groups of channels over all parts of a map, merged part by part without loss of digits."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None  # of what is left after the mean is taken away

    def add(self, part: Tensor, _window: Window) -> None:
        """Add a tile's own part of the map."""
        rows = part.reshape(part.shape[0], self._num_groups, -1).double()
        count = rows.shape[-1]
        variance, mean = torch.var_mean(rows, -1, correction=0)
        squares = variance * count
        if self._mean is None or self._squares is None:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total, apart = self._count + count, mean - self._mean
        self._mean = self._mean + apart * (count / total)
        self._squares = self._squares + squares + apart.square() * (self._count * count / total)
        self._count = total

    def result(self, num_channels: int, eps: float) -> tuple[Tensor, Tensor]:
        """Return for each channel what is subtracted, and by what is multiplied then, in double precision."""
        assert self._mean is not None
        assert self._squares is not None
        scale = (self._squares / self._count + eps).rsqrt()
        each = num_channels // self._num_groups
        return tuple(x.repeat_interleave(each, 1)[..., None, None] for x in (self._mean, scale))  # type: ignore[return-value]
