"""Says in one line that host memory ran out, in whose words ever a library says it; knows no torch."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from outsize.errors import RunError, explain, first_line
from outsize.measure.address import address_space_bytes
from outsize.units import format_bytes

# how errors without a class of their own begin, or what they hold: of threads, the loader of libraries, torch and GDAL
_SAID = (
    "can't start new thread",
    "cannot allocate memory",
    "can't allocate memory",
    "could not allocate memory",
    "failed to map segment from shared object",
    "cannot enlarge memory arrays",
    "std::bad_alloc",
    "bad allocation",
    "not enough memory",
    "out of memory",
    "cplmalloc",
    "unable to allocate",
    "memory allocation",
)
# what has other causes, too, and this one where the address space is limited
_SAID_WITHIN_A_LIMIT = ("could not create a primitive", "error return without exception set")
_MOST_CHARS = 200
_GPU = ("cuda", "hip", "gpu")  # whose memory is another matter


def host_shortage(error: BaseException) -> RunError | None:
    """Return the error to tell where another one, or what led to it, says that host memory ran out."""
    for each in _causes(error):
        text = first_line(each)
        if _is_shortage(each, text.lower()):
            limit = address_space_bytes()
            bound = "" if limit is None else f" within {format_bytes(limit)} of address space (ulimit -v)"
            found = f"{text[:_MOST_CHARS]}{bound}"
            remedy = "raise the limit, end other programs, or set limits.host_memory or train.workers lower"
            return RunError(explain("host memory ran out", found, "more host memory", remedy))
    return None


def _is_shortage(error: BaseException, text: str) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if any(each in text for each in _SAID_WITHIN_A_LIMIT) and address_space_bytes() is not None:
        return True
    return any(each in text for each in _SAID) and not any(each in text for each in _GPU)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it, the outer one first."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__
