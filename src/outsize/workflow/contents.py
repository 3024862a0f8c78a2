"""Digests of what files hold; a file whose size and time are those of last time is not read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.files.manifest import MANIFEST, Manifest, sha256_of
from outsize.files.walk import files_below
from outsize.workflow.stages import digest_of

# what verbs write beside their results, with times and paths in it
_NOT_CONTENT = {"predict.json", "usage.json"}


class Contents:
    """Remembers the checksum of each file that was looked at."""

    def __init__(self, known: dict[str, list[Any]]) -> None:
        self.known = known  # path -> size, time of the last change, SHA-256

    def digest(self, places: Sequence[Path]) -> str | None:
        """Return a digest of files and folders; None where one of them is not there."""
        found = []
        for place in places:
            if not place.exists():
                return None
            found.append([self._file(place)] if place.is_file() else self._folder(place))
        return digest_of(found)

    def _folder(self, folder: Path) -> list[Any]:
        if (folder / MANIFEST).is_file():  # which says it of all that counts, if that is still there
            noted = Manifest(folder / MANIFEST).all()
            return [[each.name, each.sha256, _size(folder / each.name) == each.size_bytes] for each in noted]
        files = [path for path in files_below(folder) if not _is_aside(path, folder)]
        return [[path.relative_to(folder).as_posix(), self._file(path)] for path in files]

    def _file(self, path: Path) -> str:
        about, key = path.stat(), str(path.resolve())
        now = [about.st_size, about.st_mtime_ns]
        if self.known.get(key, [])[:2] != now:
            self.known[key] = [*now, sha256_of(path)]
        return str(self.known[key][2])


def _is_aside(path: Path, folder: Path) -> bool:
    """Say whether a file is hidden, or a note beside results."""
    return path.name in _NOT_CONTENT or any(part.startswith(".") for part in path.relative_to(folder).parts)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
