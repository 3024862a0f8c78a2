"""A manifest: one line of JSON for each file of a folder that is finished, with its size and checksum.

Until all is done lines are only added: a process that is killed loses nothing but the line it was writing, and of a
name the last line counts. A line is written before its file gets its name: what has no line is somebody else's.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outsize.files.beside import written_beside
from outsize.files.plain import read_plain_text
from outsize.files.trees import MOST_JSON_BYTES, json_tree

MANIFEST = "manifest.jsonl"
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Finished:
    """One finished file: how large, its SHA-256, and what else is known of it."""

    name: str  # relative to the folder
    size_bytes: int
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while read := file.read(_READ_BYTES):
            digest.update(read)
    return digest.hexdigest()


class Manifest:
    """The manifest of a folder, open for more lines; `note` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _read(path)
        self._guard = threading.Lock()

    def get(self, name: str) -> Finished | None:
        """Return what is written of a name."""
        return self._lines.get(name)

    def all(self) -> list[Finished]:
        """Return the finished files, by name."""
        return [self._lines[name] for name in sorted(self._lines)]

    def note(self, finished: Finished) -> None:
        """Add a line. Raises OSError."""
        line = _line(finished)
        with self._guard, self.path.open("ab") as file:
            if file.tell() and not _ends_a_line(self.path):  # a process was killed while it wrote
                file.write(b"\n")
            file.write(line.encode())
            self._lines[finished.name] = finished

    def settle(self, names: Collection[str]) -> None:
        """Keep the lines of these names alone, in order. Raises OSError."""
        with self._guard:
            kept = {name: self._lines[name] for name in sorted(self._lines) if name in names}
            lines = [_line(each) for each in kept.values()]
            with written_beside(self.path) as temporary:
                temporary.write_text("".join(lines), encoding="utf-8")
            self._lines = kept

    def holds(self, name: str) -> bool:
        """Say whether a file is there as it was written down: its size and its checksum."""
        known, path = self._lines.get(name), self.path.parent / name
        try:
            return known is not None and _is_same(path, known)
        except OSError:
            return False


def _line(finished: Finished) -> str:
    return json.dumps(vars(finished) | {"facts": dict(finished.facts)}, default=str) + "\n"


def _is_same(path: Path, known: Finished) -> bool:
    return path.stat().st_size == known.size_bytes and sha256_of(path) == known.sha256


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: Path) -> dict[str, Finished]:
    """Return the lines of a manifest; those that cannot be understood count as never written."""
    try:
        lines = read_plain_text(path, MOST_JSON_BYTES).splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        try:
            finished = Finished(**json_tree(line))
        except (ValueError, TypeError):
            continue
        if all(isinstance(each, str) for each in (finished.name, finished.sha256)):
            found[finished.name] = finished
    return found
