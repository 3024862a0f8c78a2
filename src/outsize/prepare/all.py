"""Makes all pieces of a folder that are not there yet, gives them their names, and writes down what is there.

TO/.outsize-partial/TOKEN/     what workers write; nobody else's, and gone at the end
TO/NAME                        whole; its line in TO/manifest.jsonl says of which bytes it was made
TO/set-aside.json              what could not be made, by name, with the reason
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from outsize.errors import DataError, explain
from outsize.files.manifest import MANIFEST, Manifest
from outsize.prepare.batches import make_all
from outsize.prepare.piece import Piece, PieceMade, signatures
from outsize.prepare.workers import Workers
from outsize.progress import Reporter
from outsize.runs import output_errors, write_json
from outsize.threads import Threads

PARTIAL, SET_ASIDE = ".outsize-partial", "set-aside.json"
_LOOKING = 4  # threads that read what is there


@dataclass(frozen=True)
class FolderFilled:
    """What is there after all was tried."""

    num_made: int
    num_there: int  # before
    num_removed: int  # files of what is no longer asked for
    set_aside: Mapping[str, str]  # the reason, by name
    shared_s: float  # that workers took, side by side
    num_workers: int


def make_missing(
    pieces: Sequence[Piece], folder: Path, by: Workers, *, version: str, reporter: Reporter
) -> FolderFilled:
    """Make what is not there as it should be; one piece that cannot be made keeps no other from it.

    Raises OutputError where the disk is at fault: then nothing else would do better.
    """
    _refuse_twins(pieces)
    manifest = Manifest(folder / MANIFEST)
    missing = _missing(pieces, manifest)
    by_name = {piece.name: piece for piece in missing}
    set_aside: dict[str, str] = {}
    begun_s = time.monotonic()
    with (
        _partial(folder) as partial,
        reporter.bar("prepare", len(missing), "file", parallel=max(by.num, 1)) as bar,
    ):
        for made in make_all(missing, by, partial, version):
            why = made.why or _publish(made, by_name[made.name], partial, manifest)
            if why:
                set_aside[made.name] = why
                reporter.say("set-aside", f"set aside: {made.name}: {why}", name=made.name, why=why)
            bar.advance(1)
    shared_s = time.monotonic() - begun_s
    wanted = {name for piece in pieces if piece.name not in set_aside for name in piece.outputs}
    num_removed = _settle(folder, manifest, wanted, set_aside)
    num_made, num_there = len(missing) - len(set_aside), len(pieces) - len(missing)
    return FolderFilled(num_made, num_there, num_removed, set_aside, shared_s, max(by.num, 1))


def _missing(pieces: Sequence[Piece], manifest: Manifest) -> list[Piece]:
    """Return the pieces that are not there whole, made of these bytes by these settings."""
    with Threads(_LOOKING, "look", "looks at what is there") as threads:
        looks = [(piece, threads.submit(_is_there, piece, manifest)) for piece in pieces]
        return [piece for piece, look in looks if not threads.result(look)]


def _is_there(piece: Piece, manifest: Manifest) -> bool:
    if not piece.outputs:  # what cannot be made, as was seen before
        return False
    for name in piece.outputs:
        known = manifest.get(name)
        if known is None or known.facts.get("settings") != piece.settings:
            return False
        if not _is_made_of(piece, known.facts.get("made_of")) or not manifest.holds(name):
            return False
    return True


def _is_made_of(piece: Piece, noted: object) -> bool:
    """Say whether the sources are those that were noted: by size and time of change, else by their bytes."""
    if not isinstance(noted, list) or len(noted) != len(piece.sources):
        return False
    try:
        now = [path.stat() for path in piece.sources]
        same = [
            [str(path), about.st_size, about.st_mtime_ns] == each[:3]
            for path, about, each in zip(piece.sources, now, noted, strict=True)
        ]
        return all(same) or [each[3] for each in signatures(piece.sources)] == [each[3] for each in noted]
    except (OSError, DataError, TypeError, LookupError):  # gone, or no line of ours
        return False


def _publish(made: PieceMade, piece: Piece, partial: Path, manifest: Manifest) -> str:
    """Give the files of a piece their names; return why that is not possible."""
    folder = manifest.path.parent
    for each in made.finished:
        if os.path.lexists(folder / each.name) and manifest.get(each.name) is None:
            need, remedy = "none, or one that was prepared", "move it"
            return explain(
                f"{folder / each.name} would be written over", "a file of other make", need, remedy
            )
    for each in made.finished:
        target = folder / each.name
        facts = {**each.facts, "settings": piece.settings, "made_of": [list(one) for one in made.made_of]}
        with output_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            manifest.note(replace(each, facts=facts))
            (partial / each.name).replace(target)
    return ""


def _settle(folder: Path, manifest: Manifest, wanted: set[str], set_aside: Mapping[str, str]) -> int:
    """Remove what earlier times have made and is no longer asked for, or can no longer be made; put lines in order."""
    old = [each.name for each in manifest.all() if each.name not in wanted]
    with output_errors(folder):
        for name in old:
            (folder / name).unlink(missing_ok=True)
        manifest.settle(wanted)
        if not set_aside:
            (folder / SET_ASIDE).unlink(missing_ok=True)
    if set_aside:
        write_json(folder / SET_ASIDE, dict(sorted(set_aside.items())))
    return len(old)


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Give a folder for what is not whole: a new one, for workers of an earlier time may still be at work."""
    partial = folder / PARTIAL / secrets.token_hex(8)
    with output_errors(partial):
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)


def _refuse_twins(pieces: Sequence[Piece]) -> None:
    owners: dict[str, Piece] = {}
    for piece in pieces:
        for name in piece.outputs:
            twin = owners.setdefault(name, piece)
            if twin is not piece:
                both = f"{twin.sources[0]} and {piece.sources[0]}"
                need, remedy = "a name for each", "rename one of them, or prepare them into two folders"
                raise DataError(explain(f"two files would become {name}", both, need, remedy))
