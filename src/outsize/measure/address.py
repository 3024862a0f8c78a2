"""The limit on this process's address space (`ulimit -v`), and whether it leaves room to work; loads no library."""

from __future__ import annotations

from outsize.errors import RunError, explain
from outsize.units import format_bytes

# Counted with nothing computed yet: torch, GDAL and SciPy are mapped whole. Those of a build for GPUs take more.
_LIBRARIES_BYTES = 4 << 30
_WORK_BYTES = 1 << 30  # of the smallest job: stacks and arenas of threads, a model, a few tiles


def address_space_bytes() -> int | None:
    """Return the limit; None where there is none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def refuse_little_address_space() -> None:
    """Refuse to begin where libraries would fail to load, each in its own way: some end the process, some hang it."""
    limit_bytes = address_space_bytes()
    need_bytes = _LIBRARIES_BYTES + _WORK_BYTES
    if limit_bytes is not None and limit_bytes < need_bytes:
        found = f"{format_bytes(limit_bytes)} of address space (ulimit -v)"
        need = f"{format_bytes(need_bytes)}, of which libraries take {format_bytes(_LIBRARIES_BYTES)}"
        raise RunError(explain("host memory is too little to begin", found, need, "raise the limit"))
