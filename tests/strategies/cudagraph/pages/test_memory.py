"""What memory by pages is made of, as far as it needs no GPU: addresses, and torch's notes of what was taken."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outsize.files import cache as user_folders
from outsize.strategies.compiled import _FOLDER_OF_CODE, _keep_code_to_ourselves
from outsize.strategies.cudagraph.pages import addresses as addresses_module
from outsize.strategies.cudagraph.pages import memory as paged
from outsize.strategies.cudagraph.pages import pages
from outsize.strategies.cudagraph.pages.addresses import NoAddressesError, addresses
from outsize.strategies.cudagraph.pages.apart import num_elements, uses_of
from outsize.strategies.cudagraph.pages.memory import PagedMemory, why_not_paged
from outsize.strategies.cudagraph.pages.pages import PAGE_BYTES, Pages
from outsize.strategies.cudagraph.pages.sharing import AddressUse

MIB = 2**20
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    why_not_paged.cache_clear()
    yield
    why_not_paged.cache_clear()
    addresses.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_folders, "cache_folder", lambda: tmp_path)
    return tmp_path


@needs_compiler
def test_addresses_are_handed_out_by_whole_pages_and_never_twice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it is there"))
    addresses_module._built()


_PLANTED = """#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("OUTSIZE_TOLD"), "w")); }
"""


@needs_compiler
@pytest.mark.parametrize(
    "how", ["of another user", "others may write", "folder that others may write in", "link"]
)
def test_code_that_others_may_have_put_there_is_not_loaded(
    cache: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = addresses_module._built()
    folder, told = cache, cache.parent / f"{cache.name}-told"
    source = cache.parent / "planted.c"
    source.write_text(_PLANTED)
    planted.unlink()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(planted), str(source)], check=True)
    planted.chmod(0o700)
    monkeypatch.setenv("OUTSIZE_TOLD", str(told))
    if how == "of another user":
        monkeypatch.setattr("outsize.files.private.os.geteuid", lambda: os.getuid() + 1)
    elif how == "others may write":
        planted.chmod(0o722)
    elif how == "link":
        planted.rename(folder.parent / "elsewhere.so")
        planted.symlink_to(folder.parent / "elsewhere.so")
    else:
        folder = cache.parent / "open" / "ours"
        folder.mkdir(parents=True, mode=0o700)
        planted.rename(folder / planted.name)
        monkeypatch.setattr(user_folders, "cache_folder", lambda: folder)
        folder.parent.chmod(0o777)
    addresses.cache_clear()
    with pytest.raises(NoAddressesError, match="nobody else can write"):
        addresses()
    assert not told.exists()


def test_torch_keeps_what_it_compiles_where_nobody_else_can_write(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for private in (True, False):
        monkeypatch.setenv(_FOLDER_OF_CODE, "there")
        _keep_code_to_ourselves()
        assert os.environ[_FOLDER_OF_CODE] == "there"
        monkeypatch.delenv(_FOLDER_OF_CODE)
        if not private:
            monkeypatch.setattr(user_folders, "cache_folder", lambda: cache / "link")
            (cache / "link").symlink_to("/tmp")
        _keep_code_to_ourselves()
        folder = Path(os.environ[_FOLDER_OF_CODE]).parent
        assert (folder == cache) == private
        assert folder.stat().st_mode & 0o777 == 0o700


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
    assert text in str(why_not_paged())


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(paged, "driver", missing)
    assert why_not_paged() == "libcuda.so.1: no such file"


def test_notes_tell_when_addresses_are_in_use() -> None:
    noted = [
        ("alloc", 100, 4, 1),
        ("alloc", 7, 9, 1),
        ("free_requested", 100, 4, 1),
        ("free_completed", 100, 4, 1),
    ]
    noted += [("alloc", 104, 8, 1), ("segment_alloc", 100, 64, 1), ("free_completed", 101, 1, 1)]
    noted += [("alloc", 164, 1, 1), ("alloc", 120, 2, 9), ("free_completed", 120, 2, 9)]
    names = ("action", "addr", "size", "stream")
    trace = [dict(zip(names, each, strict=True)) for each in noted]
    # for good: what stays, and what was taken for another stream, which may still read it
    assert list(uses_of(trace, 100, 64, 1)) == [
        AddressUse(0, 4, 0, 3),
        AddressUse(4, 8, 4, None),
        AddressUse(20, 2, 8, None),
    ]


def test_the_largest_argument_of_an_operation() -> None:
    x = torch.empty(2, 3)
    assert num_elements((x, None, [torch.empty(4, 5), x], 7.0)) == 20
    assert num_elements(([6, 7, 0],)) == 42  # a tensor of that size is to be made
    assert num_elements(()) == num_elements((None, "same", True)) == 0


class Driver:
    """Stands for a GPU of 64 MiB: which memory there is, and what lies behind which address."""

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.behind: dict[int, tuple[int, int]] = {}  # address: memory, bytes
        self.open: set[tuple[int, int]] = set()
        self.ranges: dict[int, int] = {}
        self.next = 1

    def cuMemAddressReserve(self, address: Any, size: Any, *_: Any) -> int:
        first = next(first for first in (1 << 40, 1 << 41) if first not in self.ranges)  # as drivers do
        address._obj.value = first
        self.ranges[first] = size.value
        return 0

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert self.ranges.pop(address.value) == size.value
        assert not self.behind
        return 0

    def cuMemCreate(self, handle: Any, size: Any, *_: Any) -> int:
        if sum(self.memory.values()) + size.value > 64 * MIB:
            return 2
        handle._obj.value = self.next
        self.memory[self.next] = size.value
        self.next += 1
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        del self.memory[handle.value]
        return 0

    def cuMemMap(self, address: Any, size: Any, _: Any, handle: Any, __: Any) -> int:
        assert address.value not in self.behind
        assert self.memory[handle.value] == size.value
        self.behind[address.value] = handle.value, size.value
        return 0

    def cuMemUnmap(self, address: Any, size: Any) -> int:
        assert self.behind.pop(address.value)[1] == size.value
        return 0

    def cuMemSetAccess(self, address: Any, size: Any, *_: Any) -> int:
        self.open.add((address.value - (1 << 40), size.value))
        return 0


class Card:
    """Stands for what torch tells of that GPU."""

    def __init__(self) -> None:
        self.share, self.reserved_bytes = 0.5, 0
        self.segments: list[dict[str, int]] = []

    def set_share(self, share: float, _: object) -> None:
        self.share = share


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 64 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: card.reserved_bytes)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: card.segments)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: card.share)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", card.set_share)
    return card


@pytest.fixture
def driver(card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(pages, "driver", lambda: driver)
    yield driver
    gc.collect()
    pages._give_back_closed()
    assert (driver.memory, driver.behind, driver.ranges) == ({}, {}, {})  # all of it was given back


def test_a_small_piece_stands_in_for_all_and_then_pages_lie_where_they_were_asked_for(driver: Driver) -> None:
    found = Pages(torch.device("cuda"), 64 * MIB, 64 * MIB)
    assert len(driver.memory) == 1
    assert sum(size for _, size in driver.behind.values()) == 64 * MIB
    assert driver.open == {(0, 64 * MIB)}
    driver.open.clear()
    found.place({0: 0, 1: 1, 5: 0, 6: 2})
    assert len(driver.memory) == 3
    behind = {
        (address - found.address) // PAGE_BYTES: handle for address, (handle, _) in driver.behind.items()
    }
    assert behind.keys() == {0, 1, 5, 6}
    assert behind[0] == behind[5]
    assert len(set(behind.values())) == 3
    assert driver.open == {(0, 2 * PAGE_BYTES), (5 * PAGE_BYTES, 2 * PAGE_BYTES)}
    found.close()
    found.close()


def test_addresses_that_torch_still_knows_are_not_handed_out_again(driver: Driver, card: Card) -> None:
    def opened() -> Pages:
        return Pages(torch.device("cuda"), 64 * MIB, 64 * MIB)

    first = opened()
    card.segments = [{"address": first.address + 6 * MIB}]  # a model keeps a tensor
    kept = first.address
    first.close()
    assert driver.memory == {}  # at once
    second = opened()
    assert second.address != kept
    second.close()
    card.segments = []
    third = opened()
    assert third.address == kept
    assert driver.ranges.keys() == {kept}
    third.close()


def test_what_fails_half_way_is_given_back(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Pages(torch.device("cuda"), 64 * MIB, 64 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"cuMemCreate: the GPU has no memory left"):
        found.place({page: page for page in range(33)})
    found.close()
    monkeypatch.setattr(driver, "cuMemSetAccess", lambda *_: 1)
    monkeypatch.setattr(driver, "cuGetErrorString", lambda *_: None, raising=False)
    with pytest.raises(RuntimeError, match=r"cuMemSetAccess: .*\(1\)"):
        Pages(torch.device("cuda"), 64 * MIB, 64 * MIB)


@pytest.mark.usefixtures("driver")
def test_pages_count_against_the_limit_until_they_are_given_back(card: Card) -> None:
    memory = PagedMemory(torch.device("cuda"))
    memory._before_bytes, card.reserved_bytes = 10 * MIB, 30 * MIB  # 20 MiB of addresses stay
    memory._uses = [
        AddressUse(0, 4 * MIB, 0, 1),
        AddressUse(4 * MIB, 2 * MIB, 1, 2),
        AddressUse(8 * MIB, 6 * MIB, 2, None),
    ]
    memory._pages.address = 1 << 40
    stays = torch.empty(0)
    with pytest.raises(
        RuntimeError, match=r"1 tensors \(6.0 MiB\) that are made in a step are kept beyond it"
    ):
        memory.settle([stays])
    memory._uses[-1] = AddressUse(8 * MIB, 6 * MIB, 2, 3)
    memory.settle([])
    assert memory.num_bytes == 6 * MIB
    assert memory.held_bytes == 16 * MIB
    assert card.share == pytest.approx(0.5 + (20 - 6) / 64)  # so 16 MiB of torch's and pages are left of 32
    memory.close()
    assert card.share == 0.5


@pytest.mark.usefixtures("driver")
def test_more_than_the_limit_is_a_shortage_and_a_limit_of_somebody_else_stays(card: Card) -> None:
    memory = PagedMemory(torch.device("cuda"))
    memory._before_bytes, memory._uses = 20 * MIB, [AddressUse(0, 14 * MIB, 0, 1)]
    with pytest.raises(
        torch.OutOfMemoryError, match=r"needs 14.0 MiB: 20.0 MiB are held besides, 32.0 MiB are"
    ):
        memory.settle([])
    card.share = 0.9  # set by another meanwhile
    del memory  # nobody closes it
    gc.collect()
    assert card.share == 0.9
