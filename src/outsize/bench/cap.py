"""A limit for ours that is given as what the process may hold, not as a share of what tensors take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outsize.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class Cap:
    """What torch's allocator may hold: a number of bytes, or a share of what plain takes at its peak."""

    text: str  # as it was given
    size_bytes: int | None = None
    share: float | None = None

    @property
    def label(self) -> str:
        """The name of ours under it."""
        if self.size_bytes is not None:
            return f"ours, capped at {format_bytes(self.size_bytes)}"
        assert self.share is not None
        return f"ours, capped at {100 * self.share:g} % of plain"

    def limit_bytes(self, plain_bytes: int) -> int:
        """Return the limit that a plan is made for."""
        if self.size_bytes is not None:
            return self.size_bytes
        assert self.share is not None
        return math.floor(self.share * plain_bytes)


def parse_cap(text: str) -> Cap | None:
    """Read "70%" or "16GiB"; None where it is neither of the kinds."""
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            return None
        return Cap(text, share=share) if 0 < share < math.inf else None
    return Cap(text, size_bytes=parse_bytes(text)) if text[-1:] in ("B", "b") else None
