"""Which rows of a picture a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.errors import PlanError, explain
from outsize.ranks import World


@dataclass(frozen=True)
class Rows:
    """The rows [start, stop) of a picture that one rank holds.

    A start is a multiple of the network's whole stride, so that at every resolution each row is one rank's.
    """

    start: int
    stop: int
    height: int  # of the whole picture

    @property
    def at_top(self) -> bool:
        """Whether the picture ends above."""
        return self.start == 0

    @property
    def at_bottom(self) -> bool:
        """Whether the picture ends below."""
        return self.stop == self.height


def rows_of(height: int, world: World, stride: int) -> Rows:
    """Return this rank's rows: whole strides, as even as they can be; what is left over is the last one's."""
    num_strides = height // stride
    if num_strides < world.size:
        need, remedy = f"at least {world.size * stride} rows", "use fewer ranks, or larger pictures"
        raise PlanError(explain(f"a picture for {world.size} ranks", f"{height} rows", need, remedy))
    own = world.part_of(num_strides)
    is_last = world.rank == world.size - 1
    return Rows(own.start * stride, height if is_last else own.stop * stride, height)
