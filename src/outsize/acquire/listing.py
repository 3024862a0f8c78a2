"""Reads what is to be fetched: a list of addresses, with names, checksums, times and patterns.

    https://host/rain/20201031_0000.nc                                 fetched as 20201031_0000.nc
    https://host/rain/a.nc  sha256:9f86d0...  2020/a.nc                its checksum, and the name it gets
    https://host/rain/{time:%Y%m%d_%H%M}.nc                            once for each time of the list
    https://host/rain/*.nc                                             what the folder's page links to
    file:raw/*.nc                                                      files of this machine

A list that is a TOML file says all of it in a section [acquire].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from outsize.errors import DataError, explain
from outsize.files.walk import matching

_CHECKSUM = re.compile(r"(?:(sha256|sha512|sha1|md5):)?([0-9a-fA-F]{32,128})")
_BY_LENGTH = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_TIME = re.compile(r"\{time:([^{}]+)\}")
_MOST_TIMES = 1_000_000


@dataclass(frozen=True)
class Remote:
    """One file to be fetched."""

    url: str
    name: str  # below the folder it goes to
    checksum: tuple[str, str] | None = None  # algorithm, hex


@dataclass(frozen=True)
class Times:
    """The times that {time:...} in an address stands for."""

    first: datetime
    last: datetime
    step: timedelta

    @classmethod
    def of_minutes(cls, first: datetime, last: datetime, minutes: float) -> Times:
        """Return times so many minutes apart."""
        return cls(first, last, timedelta(minutes=minutes))

    def each(self) -> Iterator[datetime]:
        """Yield them."""
        num = int((self.last - self.first) / self.step) + 1
        if num > _MOST_TIMES:
            remedy = "take a longer step or a shorter time"
            raise DataError(
                explain("the list has too many times", f"{num:,}", f"at most {_MOST_TIMES:,}", remedy)
            )
        yield from (self.first + number * self.step for number in range(num))


def read_lines(lines: Sequence[str], times: Times | None, fetch_page: Callable[[str], str]) -> list[Remote]:
    """Return what the lines of a list stand for, each file once; `fetch_page` returns the text of a web page."""
    found: dict[str, Remote] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        address, checksum, name = _parts(words, number)
        for url in _addresses(address, times, number):
            for one in _expanded(url, fetch_page):
                remote = Remote(one, name or _last_part(one, number), checksum)
                twin = found.setdefault(remote.name, remote)
                if twin.url != remote.url:
                    what, both = f"line {number} of the list", f"{twin.url} and {remote.url}"
                    need, remedy = "a name for each", "write another name at the end of one of the lines"
                    raise DataError(explain(f"{what} names {remote.name} twice", both, need, remedy))
    if not found:
        need, remedy = "at least one address", "write one address on each line"
        raise DataError(explain("the list names no file", "nothing to fetch", need, remedy))
    return list(found.values())


def _parts(words: list[str], number: int) -> tuple[str, tuple[str, str] | None, str]:
    """Return address, checksum and name of a line."""
    address, *rest = words
    checksum, name = None, ""
    for word in rest:
        match = _CHECKSUM.fullmatch(word)
        if match is not None and checksum is None:
            kind = match[1] or _BY_LENGTH.get(len(match[2]), "")
            if _BY_LENGTH.get(len(match[2])) != kind:
                need, remedy = "the length of a sha256, sha512, sha1 or md5", "copy it again"
                what = f"the checksum in line {number} of the list has a wrong length"
                raise DataError(explain(what, f"{len(match[2])} digits", need, remedy))
            checksum = kind, match[2].lower()
        elif not name:
            name = _safe(word, number)
        else:
            need, remedy = "an address, a checksum and a name", "write spaces in addresses as %20"
            raise DataError(explain(f"line {number} of the list has too much", repr(word), need, remedy))
    if name and (_is_pattern(address) or _TIME.search(address)):
        need, remedy = "an address of one file", "leave the name out"
        raise DataError(explain(f"line {number} of the list has one name for many", name, need, remedy))
    return address, checksum, name


def _addresses(address: str, times: Times | None, number: int) -> Iterator[str]:
    """Yield an address for each time that it stands for."""
    scheme = urlsplit(address).scheme
    if scheme not in ("http", "https", "file"):
        need = "http://, https:// or file:"
        remedy = "write the whole address" if "/" in address or "." in address else "name a list"
        what = f"line {number} of the list has no address that can be fetched"
        raise DataError(explain(what, repr(address), need, remedy))
    if not _TIME.search(address):
        yield address
        return
    if times is None:
        need, remedy = "`first`, `last` and `step_minutes`", "say them in [acquire] of a TOML list"
        raise DataError(explain(f"line {number} of the list has a time", address, need, remedy))
    for when in times.each():
        yield _TIME.sub(lambda place, now=when: now.strftime(place[1]), address)  # type: ignore[misc]


def _expanded(url: str, fetch_page: Callable[[str], str]) -> list[str]:
    """Return the addresses that a pattern stands for."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(url2pathname(parts.path))
        if not _is_pattern(url):
            return [f"file:{quote(path.absolute().as_posix())}"]
        path = path.absolute()
        found = [each for each in matching(Path(path.anchor), path.parts[1:], url) if each.is_file()]
        addresses = [f"file:{quote(each.as_posix())}" for each in found]
    else:
        folder, _, pattern = url.rpartition("/")
        if not _is_pattern(url):
            return [url]
        links = _Links()
        links.feed(fetch_page(folder + "/"))
        inside = (urljoin(folder + "/", each) for each in links.found)
        addresses = sorted(
            {each for each in inside if each.startswith(folder + "/") and _matches(each, folder, pattern)}
        )
    if not addresses:
        need, remedy = "at least one file", "check the pattern"
        raise DataError(explain(f"{url} stands for nothing", "no file of that name", need, remedy))
    return addresses


def _is_pattern(address: str) -> bool:
    parts = urlsplit(address)
    # behind the ? of a web address is its query
    signs, where = ("*?[", address) if parts.scheme == "file" else ("*[", parts.path.rpartition("/")[2])
    return any(sign in where for sign in signs)


def _matches(url: str, folder: str, pattern: str) -> bool:
    name = url[len(folder) + 1 :]
    return "/" not in name and fnmatchcase(unquote(name), pattern)


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link."""
        self.found += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _last_part(url: str, number: int) -> str:
    return _safe(unquote(PurePosixPath(urlsplit(url).path).name), number)


def _safe(name: str, number: int) -> str:
    """Refuse a name that would leave the folder, hide, or be one of outsize's own."""
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or any(part.startswith(".") or "\0" in part for part in parts):
        need, remedy = "a name below the folder", "write a name at the end of the line"
        raise DataError(explain(f"line {number} of the list gives no safe name", repr(name), need, remedy))
    return PurePosixPath(*parts).as_posix()
