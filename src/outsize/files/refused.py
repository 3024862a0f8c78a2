"""Says in one line that the system refuses a name: it is too long, or leads where we may not look."""

from __future__ import annotations

import errno
import os

from outsize.errors import OutsizeError, explain

_REMEDIES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "remove the links that lead to one another",
    errno.EACCES: "change the permissions of the folders that it lies in",
    errno.EPERM: "change the permissions of the folders that it lies in",
}
_MOST_LETTERS = 200


def refused_name(error: BaseException) -> OutsizeError | None:
    """Return what a user reads of a name that the system refuses; None where something else went wrong."""
    if not isinstance(error, OSError) or error.errno not in _REMEDIES or error.filename is None:
        return None
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else "a file"
    shown = name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}..."
    need = "a name that the system takes"
    return OutsizeError(
        explain(f"{shown} cannot be used", error.strerror or error, need, _REMEDIES[error.errno])
    )
