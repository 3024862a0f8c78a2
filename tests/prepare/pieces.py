"""Pieces of work that take no time, for tests of who makes them: each copies the text of its source."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from outsize.errors import DataError, explain
from outsize.prepare.piece import Facts, Piece
from outsize.prepare.workers import WorkerLost


def copying(folder: Path, names: Sequence[str], settings: str = "1", **how: Any) -> list[Piece]:
    """Return pieces whose sources lie in `folder`; `how` is of `copy`."""
    folder.mkdir(exist_ok=True)
    found = []
    for name in names:
        source = folder / name
        if not source.exists():
            source.write_text(name)
        make = partial(copy, source, f"{name}.out", **how)
        found.append(Piece(name, (source,), (f"{name}.out",), settings, make))
    return found


def copy(
    source: Path, name: str, folder: Path, *, kills: str = "", once: str = "", takes_s: float = 0
) -> Facts:
    """Copy a text; one that says "bad" cannot be. The source `kills` kills its process, at its first time if `once`."""
    text = source.read_text()
    if text == "bad":
        raise DataError(explain(f"{source.name} is bad", "bad", "good", "mend it"))
    if source.name == kills and not (once and Path(once).exists()):
        Path(once or os.devnull).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(takes_s)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text.upper())
    return {name: {"letters": len(text)}}


class Here:
    """Workers that are this process: a call is made as soon as it is handed out; `lost` names pieces that kill."""

    def __init__(self, num: int = 2, lost: Sequence[str] = ()) -> None:
        self.num = num
        self.lost = lost
        self.calls: list[list[str]] = []  # in the order of their beginning
        self.most_at_once = 0

    def submit(self, call: Any, pieces: list[Piece], folder: Path, version: str) -> Future[Any]:
        self.calls.append([piece.name for piece in pieces])
        future: Future[Any] = Future()
        if set(self.lost) & set(self.calls[-1]):
            future.set_exception(WorkerLost())
        else:
            future.set_result(call(pieces, folder, version))
        return future

    def done(self, calls: dict[Future[Any], Any]) -> Iterator[Future[Any]]:
        self.most_at_once = max(self.most_at_once, len(calls))
        return iter(list(calls)[:1])

    def result(self, call: Future[Any]) -> Any:
        return call.result()
