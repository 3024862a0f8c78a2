"""When tensors that are moved to host memory give their device memory back, and when they begin to return."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from outsize.plan.step import Key


@dataclass(frozen=True)
class SwapSchedule:
    """When memory is given back and taken again. What is named nowhere: at the end of forward, and on demand."""

    release: Mapping[Key, tuple[Key, ...]]  # when this is packed: whose memory is given back
    fetch: Mapping[Key, tuple[Key, ...]]  # when this is unpacked: what begins to come back, in this order
    late: Mapping[Key, tuple[Key, ...]] = field(
        default_factory=dict
    )  # when this is unpacked: as for `release`

    @classmethod
    def of(
        cls, moves: Iterable[tuple[Key, Key | None, Key | None]], late: Container[Key] = ()
    ) -> SwapSchedule:
        """Make it from (key, when to release it, when to fetch it), in the order in which they shall be fetched.

        Those that are `late` are released when the other is not packed but unpacked.
        """
        release: dict[Key, tuple[Key, ...]] = {}
        fetch: dict[Key, tuple[Key, ...]] = {}
        lately: dict[Key, tuple[Key, ...]] = {}
        for key, released_at, fetched_at in moves:
            for times, time in ((lately if key in late else release, released_at), (fetch, fetched_at)):
                if time is not None:
                    times[time] = (*times.get(time, ()), key)
        return cls(release, fetch, lately)

    @cached_property
    def staying(self) -> frozenset[Key]:
        """What is not given back before backward."""
        return frozenset(key for keys in self.late.values() for key in keys)


@dataclass(frozen=True)
class Eager:
    """Without a plan: each leaves as soon as it can, and comes back in reverse order."""

    ahead_bytes: int = 0  # that may wait on the device, for their copy out or for their use
