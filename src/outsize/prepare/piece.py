"""A piece of the work: the files it is made of, the files it becomes, and the function that makes it in any process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from outsize.errors import DataError, RunError, explain
from outsize.files.manifest import Finished, sha256_of

Facts = Mapping[str, Mapping[str, Any]]  # of each file that was made, by its name
Signature = tuple[str, int, int, str]  # path, size, time of the last change, SHA-256


@dataclass(frozen=True)
class Piece:
    """What becomes one or a few files of the prepared folder, whoever makes it and wherever."""

    name: str  # as a user would call it
    sources: tuple[Path, ...]
    outputs: tuple[str, ...]  # relative to the prepared folder
    settings: str  # a digest of all else that decides the outputs
    make: Callable[[Path], Facts]  # writes the outputs below a folder; must travel between processes


@dataclass(frozen=True)
class PieceMade:
    """What became of a piece: its files below a folder for what is not published yet, or why there are none."""

    name: str
    finished: tuple[Finished, ...] = ()
    made_of: tuple[Signature, ...] = ()
    why: str = ""  # it could not be made
    taken_s: float = field(default=0.0, compare=False)


def make_pieces(pieces: Sequence[Piece], folder: Path, version: str) -> list[PieceMade]:
    """Make pieces one after another below `folder`: what a worker is sent, in any process of any machine.

    What is wrong with a source is said of that piece alone. Raises OutputError where the disk is at fault, RunError
    where the worker is of another version.
    """
    own = import_module("outsize").__version__  # the package itself stands above this room
    if own != version:
        need, remedy = f"{version} everywhere", "install one version on all machines"
        raise RunError(explain("a worker runs another version of outsize", own, need, remedy))
    return [_made(piece, folder) for piece in pieces]


def _made(piece: Piece, folder: Path) -> PieceMade:
    begun_s = time.perf_counter()
    try:
        before = signatures(piece.sources)
        facts = piece.make(folder)
        if signatures(piece.sources) != before:
            need, remedy = "the same file to the end", "repeat the command when it is whole"
            raise DataError(explain(f"{piece.name} changed while it was read", "other bytes", need, remedy))
    except DataError as error:
        return PieceMade(piece.name, why=str(error), taken_s=time.perf_counter() - begun_s)
    finished = tuple(
        Finished(name, (folder / name).stat().st_size, sha256_of(folder / name), facts[name])
        for name in piece.outputs
    )
    return PieceMade(piece.name, finished, before, taken_s=time.perf_counter() - begun_s)


def signatures(sources: Sequence[Path]) -> tuple[Signature, ...]:
    """Return what tells whether sources are still the same. Raises DataError."""
    return tuple(_signature(path) for path in sources)


def _signature(path: Path) -> Signature:
    try:
        about = path.stat()
        return str(path), about.st_size, about.st_mtime_ns, _sum_of(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        found, need = error.strerror or str(error), "a file that can be read"
        raise DataError(explain(f"cannot read {path}", found, need, "check it, or leave it out")) from error


@functools.lru_cache(maxsize=1024)  # one file of polygons may belong to every scene
def _sum_of(path: Path, size_bytes: int, changed_ns: int) -> str:  # noqa: ARG001 (they are what is remembered by)
    return sha256_of(path)
