"""Sizes and durations to text and back."""

from __future__ import annotations

import pytest

from outsize.errors import JobError
from outsize.units import (
    clock,
    format_bytes,
    format_count,
    format_pixels,
    format_seconds,
    parse_bytes,
    seconds_of,
)


@pytest.mark.parametrize(("text", "size"), [("16GiB", 2**34), ("1.5 GB", 1_500_000_000), ("7", 7), (9, 9)])
def test_parse_bytes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "16 GiBs", "-1GiB", ""])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(
        JobError, match=r"size not understood: found .*, needed a number of bytes, or a number and a unit"
    ):
        parse_bytes(text)


def test_formats() -> None:
    assert (format_bytes(512), format_bytes(1536), format_bytes(2**34)) == ("512 B", "1.5 KiB", "16.0 GiB")
    assert (format_seconds(1.8e-5), format_seconds(0.0)) == ("18 us", "0.0 ms")
    assert (format_seconds(0.0042), format_seconds(75), format_seconds(4000)) == (
        "4.2 ms",
        "1 min 15 s",
        "1 h 6 min",
    )
    assert format_pixels(10000, 800) == "10,000 x 800 px"


def test_counts_say_one_or_several() -> None:
    assert [format_count(num, "step") for num in (0, 1, 7200)] == ["0 steps", "1 step", "7,200 steps"]
    assert [format_count(num, "class", "classes") for num in (1, 5)] == ["1 class", "5 classes"]


def test_times_in_utc() -> None:
    assert clock(seconds_of("2020-10-31T08:00")) == "2020-10-31T08:00Z"
    assert seconds_of("2020-10-31T08:00+02:00") == seconds_of("2020-10-31T06:00Z")
    with pytest.raises(ValueError, match="is no time"):
        seconds_of("today")
