"""What the lines of a list stand for, and which of them are refused."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from outsize.acquire.listing import Remote, Times, read_lines
from outsize.errors import DataError

_HOURS = Times.of_minutes(datetime(2020, 10, 31, 23), datetime(2020, 11, 1, 1), 60)


def _read(*lines: str, times: Times | None = None, page: str = "") -> list[Remote]:
    return read_lines(lines, times, lambda _: page)


def test_a_line_has_an_address_a_checksum_and_a_name() -> None:
    digest = "a" * 64
    found = _read(
        "# rain",
        "",
        "http://h/a%20b.nc",
        f"http://h/c?key=1 sha256:{digest} 2020/c.nc",
        f"http://h/d {'0' * 32}",
    )
    assert found == [
        Remote("http://h/a%20b.nc", "a b.nc"),
        Remote("http://h/c?key=1", "2020/c.nc", ("sha256", digest)),
        Remote("http://h/d", "d", ("md5", "0" * 32)),
    ]


def test_a_time_stands_for_all_of_them() -> None:
    found = _read("http://h/{time:%Y%m%d}/{time:%H%M}.nc", times=_HOURS)
    assert [each.url for each in found] == [
        "http://h/20201031/2300.nc",
        "http://h/20201101/0000.nc",
        "http://h/20201101/0100.nc",
    ]


def test_a_pattern_stands_for_links_of_a_page_inside_its_folder() -> None:
    page = '<a href="a.nc">a</a> <a href="/rain/b.nc">b</a> <a href="../c.nc">c</a> <a href="d.txt">d</a><a href="http://else/e.nc">'
    found = _read("http://h/rain/*.nc", page=page)
    assert [each.url for each in found] == ["http://h/rain/a.nc", "http://h/rain/b.nc"]


def test_a_pattern_stands_for_files_of_this_machine(tmp_path: Path) -> None:
    for name in ("b c.nc", "a.nc", "d.txt"):
        (tmp_path / name).touch()
    assert [each.name for each in _read(f"file:{tmp_path}/*.nc")] == ["a.nc", "b c.nc"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rain.nc", "no address that can be fetched"),
        ("ftp://h/a", "no address that can be fetched"),
        ("http://h/", "no safe name"),
        ("http://h/a ../b", "no safe name"),
        ("http://h/a /etc/passwd", "no safe name"),
        ("http://h/%2e%2e%2fa .hidden", "no safe name"),
        ("http://h/a b c", "too much"),
        (f"http://h/a sha256:{'0' * 40}", "wrong length"),
        ("http://h/{time:%H}.nc", "has a time"),
        ("http://h/*.nc one.nc", "one name for many"),
        ("http://h/*.nc", "stands for nothing"),
        ("# nothing", "names no file"),
    ],
)
def test_what_cannot_be_meant_is_one_line(line: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        _read(line)
    assert "\n" not in str(error.value)


def test_a_name_is_used_once() -> None:
    assert len(_read("http://h/a", "http://h/a")) == 1
    with pytest.raises(DataError, match="names a twice"):
        _read("http://h/1/a", "http://h/2/a")
