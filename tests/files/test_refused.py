"""Names that the system refuses are told in one line; other trouble is not taken for one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from outsize import cli
from outsize.files.refused import refused_name


def test_a_long_name_is_told_in_one_line() -> None:
    with pytest.raises(OSError, match="too long") as caught:
        Path("a" * 300).stat()
    told = str(refused_name(caught.value))
    assert "File name too long" in told
    assert told.endswith("give a shorter name")
    assert len(told) < 400


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ELOOP])
def test_places_that_are_closed_are_told(number: int) -> None:
    told = refused_name(OSError(number, "no", b"/somewhere\xff\n"))
    assert told is not None
    assert "\n" not in str(told)


def test_other_trouble_is_not_taken_for_a_name() -> None:
    assert refused_name(OSError(errno.EIO, "input or output error", "a")) is None
    assert refused_name(OSError(errno.EACCES, "of no file")) is None
    assert refused_name(ValueError("a")) is None


@pytest.mark.parametrize("words", [["info"], ["report"], ["init"]])
def test_no_verb_ends_in_a_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["outsize", *words, "b" * 300])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
