"""A shortage of host memory is one line, whoever says it and wherever it was."""

from __future__ import annotations

import errno

import pytest

from outsize import cli
from outsize.cli import memory_line
from outsize.cli.memory_line import host_shortage
from outsize.errors import ModelError

SHORTAGES = (
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("can't start new thread"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("std::bad_alloc"),
    ImportError("libgdal.so.36: failed to map segment from shared object"),
    RuntimeError("CPLMalloc(): Out of memory allocating 1000 bytes."),
)


@pytest.mark.parametrize("error", SHORTAGES, ids=str)
def test_every_word_for_it_is_known(error: Exception) -> None:
    told = host_shortage(error)
    assert told is not None
    assert str(told).startswith("host memory ran out: found ")
    assert "\n" not in str(told)


def test_what_led_to_an_error_counts() -> None:
    error = ModelError("the graph cannot be read")
    error.__cause__ = MemoryError()
    assert host_shortage(error) is not None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        OSError(errno.ENOSPC, "full"),
    ],
)
def test_other_errors_are_none(error: Exception) -> None:
    assert host_shortage(error) is None


def test_what_may_have_other_causes_is_a_shortage_within_a_limit_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = RuntimeError("could not create a primitive")
    monkeypatch.setattr(memory_line, "address_space_bytes", lambda: None)
    assert host_shortage(error) is None
    monkeypatch.setattr(memory_line, "address_space_bytes", lambda: 6 << 30)
    told = str(host_shortage(error))
    assert "could not create a primitive within 6.0 GiB of address space (ulimit -v)" in told


@pytest.mark.parametrize("error", SHORTAGES, ids=str)
def test_the_command_line_says_it_without_a_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("outsize.commands.results.info", short)
    monkeypatch.setattr("sys.argv", ["outsize", "info", "somewhere"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("outsize: host memory ran out")
