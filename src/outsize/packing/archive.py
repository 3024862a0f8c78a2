"""Writes a pack as one archive or folder, and reads one that a stranger may have made: nothing of it is believed.

    NAME.tar, NAME.tar.gz    members in the order of the lists; owners and times of this machine stay here
    NAME/                    the same as files of a folder

A name leads nowhere but below the folder, a member is a plain file, no more is read than the lists tell, and no more
is kept than their checksums confirm.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO

from outsize.errors import DataError, RunError, UnsafeFileError, explain
from outsize.files.beside import create
from outsize.files.manifest import Finished, sha256_of
from outsize.files.ownership import MADE_BY
from outsize.files.plain import open_plain
from outsize.files.walk import MAX_NAMES, files_below
from outsize.packing.names import DATA_LIST, HEAD, MANIFEST
from outsize.units import format_bytes

SUFFIXES = (".tar", ".tar.gz", ".tgz")
_PIECE_BYTES = 2**20  # that is read at once; heads of members that want more are an attack
_MOST_LETTERS = 4096
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)

Tell = Callable[[int], object]  # how many bytes more are done


@dataclass(frozen=True)
class Content:
    """One file of a pack: its name there, and what it holds: a file of this machine, or bytes."""

    name: str
    source: Path | bytes

    def finished(self, tell: Tell = lambda _: None) -> Finished:
        """Return its line in a list; refuse a file that cannot be read."""
        if isinstance(self.source, bytes):
            return Finished(self.name, len(self.source), hashlib.sha256(self.source).hexdigest())
        try:
            found = Finished(self.name, self.source.stat().st_size, sha256_of(self.source))
        except OSError as error:
            raise _unreadable(self.source, error) from error
        tell(found.size_bytes)
        return found

    def open(self) -> IO[bytes]:
        """Open it for reading; refuse a file that is gone meanwhile."""
        if isinstance(self.source, bytes):
            return io.BytesIO(self.source)
        try:
            return os.fdopen(open_plain(self.source), "rb")
        except OSError as error:
            raise _unreadable(self.source, error) from error


def is_archive(path: Path) -> bool:
    """Say whether a name is that of an archive."""
    return path.name.lower().endswith(SUFFIXES)


def write_archive(target: Path, contents: Iterable[Content], *, zipped: bool, tell: Tell) -> None:
    """Write files one behind the other. Raises OSError."""
    with ExitStack() as stack:
        out = stack.enter_context(_zipping(stack.enter_context(target.open("wb")), zipped))
        archive = stack.enter_context(tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT))
        for each in contents:
            about = tarfile.TarInfo(each.name)
            with each.open() as source:
                about.size = source.seek(0, os.SEEK_END)
                source.seek(0)
                archive.addfile(about, source)
            tell(about.size)


@contextmanager
def _zipping(file: IO[bytes], zipped: bool) -> Iterator[IO[bytes]]:
    if not zipped:
        yield file
        return
    with gzip.GzipFile(fileobj=file, mode="wb", filename=MADE_BY, mtime=0) as out:
        yield out  # type: ignore[misc]


def write_folder(target: Path, contents: Iterable[Content], *, tell: Tell) -> None:
    """Write files into a new folder. Raises OSError."""
    for each in contents:
        with each.open() as source, os.fdopen(create(_made(target, each.name)), "wb") as out:
            shutil.copyfileobj(source, out, _PIECE_BYTES)
            tell(out.tell())


Files = Iterator[tuple[str, int, IO[bytes]]]


@contextmanager
def reading(path: Path) -> Iterator[Files]:
    """Open a pack and give its files one after the other, each to be read before the next; refuse what is unsafe."""
    if path.is_dir():
        yield _in_folder(path)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(os.fdopen(open_plain(path), "rb"))
            bounded = stack.enter_context(_unzipping(file))
            archive = stack.enter_context(tarfile.open(fileobj=bounded, mode="r:"))  # type: ignore[call-overload]
        except _BROKEN as error:
            raise damaged(path, str(error) or type(error).__name__) from error
        except OSError as error:
            need, remedy = "a file or folder that `outsize pack` wrote", "check the path and its permissions"
            raise RunError(explain(f"{path} cannot be read", error.strerror, need, remedy)) from error
        yield _in_archive(archive, path)


def _in_folder(folder: Path) -> Files:
    heads = [folder / name for name in (HEAD, MANIFEST, DATA_LIST)]
    for path in [*heads, *(each for each in files_below(folder) if each not in heads)]:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise _unsafe(folder, f"{name}, a link", "plain files")
        if not path.is_file():
            raise damaged(folder, f"no {name}")
        try:
            opened = open_plain(path)
        except OSError as error:
            raise damaged(folder, f"{name}: {error.strerror}") from error
        with os.fdopen(opened, "rb") as file:
            yield name, os.fstat(file.fileno()).st_size, file


def _in_archive(archive: tarfile.TarFile, path: Path) -> Files:
    for number in count():
        try:
            member = archive.next()
        except _BROKEN as error:
            raise damaged(path, str(error) or type(error).__name__) from error
        if member is None:
            return
        if number >= MAX_NAMES:
            raise _unsafe(path, f"more than {MAX_NAMES:,} files", "fewer")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise _unsafe(path, f"{member.name!r}, which is no plain file", "plain files alone")
        file = archive.extractfile(member)
        assert file is not None
        yield member.name, member.size, file


class _Bounded:
    """A file of which no more is read at once than a piece: a head may say that it has gigabytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE_BYTES:
            raise tarfile.ReadError("a head without bounds")
        return self._file.read(size)


@contextmanager
def _unzipping(file: IO[bytes]) -> Iterator[_Bounded]:
    is_zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not is_zipped:
        yield _Bounded(file)
        return
    with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
        yield _Bounded(unzipped)  # type: ignore[arg-type]


def refuse_name(name: str, path: Path) -> None:
    """Refuse a name that leads out of a folder, or that a system or a person may take for another."""
    parts = name.split("/")
    is_plain = (
        PurePosixPath(name).as_posix() == name and not name.startswith("/") and len(name) <= _MOST_LETTERS
    )
    is_plain &= all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in parts)
    if not is_plain or not name.isprintable():
        raise _unsafe(path, repr(name), "printable names below the folder")


def take_out(name: str, file: IO[bytes], known: Finished, folder: Path | None, path: Path) -> None:
    """Copy one file of a pack into a folder; refuse another size or checksum than the list tells. Raises OSError.

    Without a folder it is only looked at.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with (
        Path(os.devnull).open("wb") if folder is None else os.fdopen(create(_made(folder, name)), "wb") as out
    ):
        for piece in _pieces(file, path):
            size_bytes += len(piece)
            if size_bytes > known.size_bytes:
                break
            digest.update(piece)
            out.write(piece)
    if size_bytes != known.size_bytes or digest.hexdigest() != known.sha256:
        raise damaged(path, f"{name} is not what was packed")


def read_whole(name: str, file: IO[bytes], most_bytes: int, path: Path) -> bytes:
    """Read one of the lists of a pack."""
    pieces = []
    for piece in _pieces(file, path):
        pieces.append(piece)
        if len(pieces) * _PIECE_BYTES > most_bytes + _PIECE_BYTES:
            raise _unsafe(path, f"{name} of more than {format_bytes(most_bytes)}", "less")
    return b"".join(pieces)


def _pieces(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield what can be read of a pack: that it cannot be is no matter of the disk that it goes to."""
    while True:
        try:
            piece = file.read(_PIECE_BYTES)
        except (*_BROKEN, OSError) as error:
            raise damaged(path, str(error) or type(error).__name__) from error
        if not piece:
            return
        yield piece


def _made(folder: Path, name: str) -> Path:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _unreadable(source: Path, error: OSError) -> DataError:
    need, remedy = "a file that can be packed", "restore it, or change its permissions"
    return DataError(explain(f"{source} cannot be read", error.strerror or error, need, remedy))


def _unsafe(path: Path, found: str, need: str) -> UnsafeFileError:
    return UnsafeFileError(
        explain(f"{path} is refused", found, need, "have it packed again by whom you trust")
    )


def damaged(path: Path, found: str) -> RunError:
    """Return what is said of a pack that is not as it was written."""
    return RunError(explain(f"{path} is damaged", found, "a pack as it was written", "copy or pack it again"))
