"""What memory by pages is made of, as far as it needs no GPU: addresses, and torch's notes of what was taken."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from outsize.strategies import addresses as addresses_module
from outsize.strategies import paged
from outsize.strategies.addresses import NoAddressesError, addresses
from outsize.strategies.paged import _num_elements, _uses, why_not
from outsize.strategies.sharing import Use

MIB = 2**20
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(addresses_module, "cache_folder", lambda: tmp_path)
    return tmp_path


@needs_compiler
def test_addresses_are_handed_out_by_whole_pages_and_never_twice(cache: Path) -> None:
    library = ctypes.CDLL(str(addresses_module._built()))
    assert [path.suffix for path in cache.iterdir()] == [".so"]  # and nothing beside it
    take = library.outsize_take
    take.restype, take.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    library.outsize_left.restype = ctypes.c_size_t
    library.outsize_open(ctypes.c_void_p(64 * MIB), ctypes.c_size_t(8 * MIB))
    assert [take(size, 0, None) for size in (1, 3 * MIB)] == [64 * MIB, 66 * MIB]
    library.outsize_give(ctypes.c_void_p(64 * MIB), ctypes.c_size_t(1), None)
    assert library.outsize_left() == 2 * MIB
    assert take(3 * MIB, 0, None) is None  # there is no room
    assert take(2 * MIB, 0, None) == 70 * MIB
    built = addresses_module._built().stat().st_mtime_ns
    assert addresses_module._built().stat().st_mtime_ns == built  # once


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("found", "text"),
    [({}, "no C compiler"), ({"cc": "/bin/false"}, "/bin/false: "), ({"cc": "/no/cc"}, "/no/cc")],
)
def test_without_a_compiler_it_says_so(
    found: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", found.get)
    addresses.cache_clear()
    with pytest.raises(NoAddressesError, match=text):
        addresses()
    monkeypatch.setattr(paged, "driver", lambda: None)
    assert text in str(why_not())


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(paged, "driver", missing)
    assert why_not() == "libcuda.so.1: no such file"


def test_notes_tell_when_addresses_are_in_use() -> None:
    noted = [("alloc", 100, 4), ("alloc", 7, 9), ("free_requested", 100, 4), ("free_completed", 100, 4)]
    noted += [("alloc", 104, 8), ("segment_alloc", 100, 64), ("free_completed", 101, 1), ("alloc", 164, 1)]
    trace = [{"action": action, "addr": address, "size": size} for action, address, size in noted]
    assert list(_uses(trace, 100, 64)) == [
        Use(0, 4, 0, 3),
        Use(4, 8, 4, 8),
    ]  # what stays is in use to the end


def test_the_largest_argument_of_an_operation() -> None:
    x = torch.empty(2, 3)
    assert _num_elements((x, None, [torch.empty(4, 5), x], 7.0)) == 20
    assert _num_elements(([6, 7, 0],)) == 42  # a tensor of that size is to be made
    assert _num_elements(()) == _num_elements((None, "same", True)) == 0
