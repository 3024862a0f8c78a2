"""Optuna's journal as a file of a run: a line for each change, whole or, where the disk is full, not there.

Optuna's own file backend has the same lines; but what a full disk lets it write of one stays, and no study is read
from the file any more. Nor does its lock tell a process that is over from one that is slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from outsize.files.append import append_whole
from outsize.files.locks import holding
from outsize.runs import as_written, output_errors

_LOCK = ".journal.lock"


class Journal(BaseJournalBackend):
    """The lines of a file; each process goes on reading where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = [0]  # of each line that was read, and of the next one

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the changes from a number on."""
        with output_errors(self._path), self._path.open("rb") as file:
            known = min(log_number_from, len(self._starts) - 1)
            file.seek(self._starts[known])
            lines = file.read().splitlines(keepends=True)
        found = []
        for number, line in enumerate(lines, start=known):
            if not line.endswith(b"\n"):
                break  # it is being written
            if number + 1 == len(self._starts):
                self._starts.append(self._starts[number] + len(line))
            if number >= log_number_from:
                with as_written(self._path, "tune"):
                    found.append(json.loads(line))
        return found

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add changes to the end."""
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
        lock = self._path.parent / _LOCK
        with output_errors(self._path), holding(lock, f"journal {self._path}", "tune", wait=True):
            append_whole(self._path, text.encode())
