"""Folders of this user for what outlives a run, and for what lasts as long as the process."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from outsize.files.private import private_folder, refuse_others


def cache_folder() -> Path | None:
    """Return the folder that outlives runs, or None where a user has none."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if asked and Path(asked).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(asked) / "outsize"
    try:
        return Path.home() / ".cache" / "outsize"
    except RuntimeError:  # no such user in the container
        return None


def folder_for_code() -> Path:
    """Return the folder for compiled code, in which nobody else can write. Raises NotPrivateError, OSError."""
    folder = cache_folder()
    if folder is None:
        return folder_for_now()
    private_folder(folder)
    refuse_others(folder)
    return folder


def folder_for_now() -> Path:
    """Return a folder of this user that lasts as long as the process."""
    return Path(_for_now().name)


@cache
def _for_now() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="outsize-")
