"""Fetches one file: begun where it stopped, repeated after failures, checked, then given its name.

    TO/.outsize-partial/NAME       what has arrived so far; NAME.json beside it: of which version of the file
    TO/NAME                        whole and checked

A server that drops a connection is asked for the rest (Range, If-Range). One that answers with the whole file, or with
another version of it, is believed: what was there is thrown away.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
    url2pathname,
)

from outsize.acquire.listing import Remote
from outsize.acquire.pace import Pace, seconds_asked
from outsize.files.beside import create
from outsize.files.plain import open_plain

PARTIAL = ".outsize-partial"
_READ_BYTES = 2**18
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class FetchError(Exception):
    """A file cannot be fetched; the text says why."""


class _TryAgainError(Exception):
    """This time it did not work."""

    def __init__(self, why: str, asked_s: float | None = None) -> None:
        super().__init__(why)
        self.asked_s = asked_s


class Halted(Exception):
    """All fetching was asked to end."""


def opener(version: str) -> OpenerDirector:
    """Return what opens web addresses, and only those, also after a redirection."""
    found = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPRedirectHandler(),
        HTTPErrorProcessor(),
        HTTPDefaultErrorHandler(),
        UnknownHandler(),
    ):
        found.add_handler(handler)
    found.addheaders = [("User-Agent", f"outsize/{version}"), ("Accept-Encoding", "identity")]
    return found


def fetch_page(opened_by: OpenerDirector, url: str, pace: Pace) -> str:
    """Return a web page as text. Raises FetchError."""
    for failures in range(1, pace.manners.tries + 1):
        pace.begin()
        try:
            with opened_by.open(Request(url), timeout=pace.manners.timeout_s) as answer:
                return str(answer.read(2**26).decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            why, again = _why(error)
            if not again or failures == pace.manners.tries:
                raise FetchError(why) from error
            pace.after_failure(failures, _asked_s(error))
    raise AssertionError("at least one try")


def fetch(
    remote: Remote, folder: Path, opened_by: OpenerDirector, pace: Pace, tell: Callable[[int], object]
) -> Path:
    """Fetch a file into the folder of partial files and check it; return where it lies.

    `tell` hears of bytes as they arrive. Raises FetchError, Halted, and OSError of the disk.
    """
    partial = folder / PARTIAL / remote.name
    partial.parent.mkdir(parents=True, exist_ok=True)
    failures, may_begin_again = 0, True
    most = _size(partial)
    while True:
        pace.begin()
        if pace.stop.is_set():
            raise Halted
        before = _size(partial)
        try:
            _one_try(remote, partial, opened_by, pace, tell)
            _check(remote, partial)
            return partial
        except _TryAgainError as error:
            if _is_right(remote, partial):  # whatever the server says of its length
                return partial
            # what arrived is progress: a connection that breaks every megabyte still brings the file
            now = _size(partial)
            failures, most = (1, now) if now > most else (failures + 1, most)
            if failures >= pace.manners.tries:
                raise FetchError(f"{error}, {failures} times") from error
            pace.after_failure(failures, error.asked_s)
        except _WrongError as error:
            _forget(partial)
            if before == 0 or not may_begin_again:
                raise FetchError(str(error)) from error
            may_begin_again = False  # it was put together of pieces: once more, from its beginning


class _WrongError(Exception):
    """All of a file is there, and it is not what was asked for."""


def _one_try(
    remote: Remote, partial: Path, opened_by: OpenerDirector, pace: Pace, tell: Callable[[int], object]
) -> None:
    """Add to the partial file what is missing. Raises _TryAgainError, FetchError."""
    if urlsplit(remote.url).scheme == "file":
        _copy(remote, partial, pace, tell)
        return
    known = _version(partial)
    have = _size(partial) if known else 0
    headers = {"Range": f"bytes={have}-", "If-Range": known["tag"]} if known and have else {}
    try:
        answer = opened_by.open(Request(remote.url, headers=headers), timeout=pace.manners.timeout_s)
    except HTTPError as error:
        with error:
            if error.code == 416:  # there is no more: it is whole, or it is another file
                if not _is_right(remote, partial):
                    _forget(partial)
                    raise _TryAgainError("HTTP 416, nothing after what was there") from error
                return
        why, again = _why(error)
        raise (_TryAgainError(why, _asked_s(error)) if again else FetchError(why)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgainError(_why(error)[0]) from error
    with answer:
        have = _agreed(answer, have)
        _note_version(partial, answer)
        with _opened(partial, have) as file:
            _receive(answer, file, pace, tell)
            have = file.tell()
    total = _total(answer)
    if total is not None and have != total:
        raise _TryAgainError(f"{have:,} bytes of {total:,} arrived")


def _receive(answer: Any, file: BinaryIO, pace: Pace, tell: Callable[[int], object]) -> None:
    while True:
        if pace.stop.is_set():
            raise Halted
        try:
            read = answer.read1(_READ_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(_why(error)[0]) from error
        if not read:
            return
        file.write(read)
        tell(len(read))


def _agreed(answer: Any, have: int) -> int:
    """Return where what comes belongs: after what is there, or at the beginning."""
    if answer.status == 206:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) > have:
            raise _TryAgainError(f"a range that was not asked for, {answer.headers.get('Content-Range')!r}")
        return int(match[1])
    return 0


def _total(answer: Any) -> int | None:
    """Return how long the file is, as the server says."""
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", "")) if answer.status == 206 else None
    if match is not None:
        return int(match[2]) if match[2].isdigit() else None
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdigit() and answer.status == 200 else None


def _copy(remote: Remote, partial: Path, pace: Pace, tell: Callable[[int], object]) -> None:
    source = Path(url2pathname(urlsplit(remote.url).path))
    try:
        handle = open_plain(source)
    except OSError as error:
        raise FetchError(error.strerror or str(error)) from error
    with os.fdopen(handle, "rb") as read_from, _opened(partial, 0) as file:
        while read := read_from.read(_READ_BYTES):
            if pace.stop.is_set():
                raise Halted
            file.write(read)
            tell(len(read))


def _opened(partial: Path, at: int) -> BinaryIO:
    """Open the partial file for writing at a place; what lies behind it is cut off."""
    with suppress(FileExistsError):
        os.close(create(partial))
    handle = os.open(partial, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.ftruncate(handle, at)
    file = os.fdopen(handle, "wb", buffering=0)
    file.seek(at)
    return file


def _check(remote: Remote, partial: Path) -> None:
    if remote.checksum is None:
        return
    kind, wanted = remote.checksum
    found = _digest(partial, kind)
    if found != wanted:
        raise _WrongError(f"its {kind} is {found}, not {wanted}")


def _is_right(remote: Remote, partial: Path) -> bool:
    return (
        remote.checksum is not None
        and _size(partial) > 0
        and _digest(partial, remote.checksum[0]) == remote.checksum[1]
    )


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _size(partial: Path) -> int:
    try:
        return partial.stat().st_size
    except FileNotFoundError:
        return 0


def _version(partial: Path) -> dict[str, str] | None:
    """Return which version of the file is partly there; None where the server did not say."""
    with suppress(OSError, ValueError):
        known = json.loads(_beside(partial).read_text(encoding="utf-8"))
        if isinstance(known, dict) and isinstance(known.get("tag"), str):
            return known
    return None


def _note_version(partial: Path, answer: Any) -> None:
    tag = answer.headers.get("ETag", "")
    if not tag or tag.startswith("W/"):  # a weak one does not promise the same bytes
        tag = answer.headers.get("Last-Modified", "")
    if tag:
        _beside(partial).write_text(json.dumps({"tag": tag}), encoding="utf-8")
    else:
        _beside(partial).unlink(missing_ok=True)


def _forget(partial: Path) -> None:
    for each in (partial, _beside(partial)):
        each.unlink(missing_ok=True)


def _beside(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _asked_s(error: BaseException) -> float | None:
    return seconds_asked(error.headers.get("Retry-After")) if isinstance(error, HTTPError) else None


def _why(error: BaseException) -> tuple[str, bool]:
    """Say in words why a request failed, and whether it may work another time."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}".strip(), error.code in _AGAIN
    if isinstance(error, URLError):
        inner = error.reason
        if isinstance(inner, OSError):
            return _why(inner)
        return f"{inner}", False  # no scheme that is known, no address
    if isinstance(error, TimeoutError):
        return "no answer in time", True
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection broke, {error.expected or 'some'} bytes before the end", True
    if isinstance(error, OSError):
        return error.strerror or f"{type(error).__name__}: {error}", True
    return f"{type(error).__name__}: {error}", True
