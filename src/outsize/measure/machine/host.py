"""How much host memory this process may still take: what the machine has, and what its control groups leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from outsize.measure.address import address_space_bytes

# Of what is free: the rest is for batches that are prepared, the page cache, and what others take meanwhile.
USABLE_SHARE = 0.8


class _Version(NamedTuple):
    """Where a version of control groups has its folders, and the names of the files in them."""

    folders: tuple[str, ...]
    limit: str
    used: str
    cached: str  # in memory.stat: files that the kernel gives up when memory is asked for


_SECOND = _Version(("", "unified"), "memory.max", "memory.current", "inactive_file")
_FIRST = _Version(("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_host_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes of host memory that this process could have, its own share of a container included."""
    return min(int(psutil.virtual_memory().available), *_left(groups, own), *_addresses_left())


def host_room_bytes(limit_bytes: int | None = None, num_sharing: int = 1) -> int:
    """Return what a plan may lock in host memory: most of what is free, and no more than limits.host_memory.

    Of what is free each of the processes that are `num_sharing` it has the same.
    """
    room_bytes = int(USABLE_SHARE * free_host_bytes()) // num_sharing
    return room_bytes if limit_bytes is None else min(limit_bytes, room_bytes)


def _addresses_left() -> Iterator[int]:
    """Yield what `ulimit -v` leaves of the address space, which libraries take much of before anything is computed."""
    limit_bytes = address_space_bytes()
    if limit_bytes is not None:
        yield max(0, limit_bytes - int(psutil.Process().memory_info().vms))


def _left(groups: Path, own: Path) -> Iterator[int]:
    """Yield what each group leaves that this process is in, its own and those around it."""
    yield 1 << 62
    for version, name in _names(own):
        for folder in version.folders:
            place = groups / folder / name.lstrip("/")
            # seen from inside a container the name may be the one outside of it: then only the root is there
            for each in (place, *place.parents):
                left_bytes = _left_in(each, version)
                if left_bytes is not None:
                    yield left_bytes
                if each == groups / folder:
                    break


def _names(own: Path) -> Iterator[tuple[_Version, str]]:
    r"""Yield the groups of this process: lines such as `4:memory:/jobs/17` of version 1, or `0::/jobs/17` of 2."""
    for line in (_text(own) or "0::/").splitlines():
        _, kinds, name = line.split(":", 2)
        if kinds == "":
            yield _SECOND, name
        elif "memory" in kinds.split(","):
            yield _FIRST, name


def _left_in(folder: Path, version: _Version) -> int | None:
    limit, used = _text(folder / version.limit), _text(folder / version.used)
    if limit is None or used is None or limit.strip() == "max":
        return None
    stat = dict(line.split(" ", 1) for line in (_text(folder / "memory.stat") or "").splitlines())
    given_up_bytes = int(stat.get(version.cached, 0))
    return max(0, int(limit) - max(0, int(used) - given_up_bytes))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None
