"""Addresses of a GPU, and the pages of its memory that lie behind them, by the driver's own calls.

reserve     |...........................................|      addresses, and no memory
stand in    |dddd|dddd|dddd|dddd|dddd|dddd|dddd|dddd|ddd|      all of it one small piece: kernels can be recorded
place       |0|1|2|1|0|...                              |      the pages that were asked for; some lie there twice
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import torch

PAGE_BYTES = 2 * 2**20  # the least that a driver hands out
_SHARE = 512  # of a card's memory, which stands in for all of a range: many small pieces would take long
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_AND_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
NO_MEMORY = "the GPU has no memory left"
# Ranges that were closed, with their bytes. The driver would hand out the same addresses again, and torch, which may
# know a tensor there still (a model keeps one), would take the next one there for it.
_closed: list[tuple[int, int]] = []


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@cache
def driver() -> Any:
    """Return the library of the GPU's driver; raises OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


class Pages:
    """A range of addresses on one GPU, to be closed; until pages are placed a small piece stands in for all."""

    def __init__(self, device: torch.device, size_bytes: int, card_bytes: int) -> None:
        self._device = device
        self._piece_bytes = max(1, card_bytes // _SHARE // PAGE_BYTES) * PAGE_BYTES
        self.size_bytes = size_bytes // self._piece_bytes * self._piece_bytes
        self._handles: list[int] = []
        self._mapped: list[tuple[int, int]] = []  # address and bytes
        torch.cuda.synchronize(device)  # and the driver knows whom it works for
        _give_back_closed()
        address = ctypes.c_uint64()
        sizes = _size(self.size_bytes), _size(0)
        _call("cuMemAddressReserve", ctypes.byref(address), *sizes, _place(0), _size(0))
        self.address = address.value
        try:
            self._stand_in()
        except BaseException:
            self.close()
            raise

    def place(self, places: Mapping[int, int]) -> None:
        """Put pages of memory behind pages of addresses; those that are not named must not be used any more."""
        torch.cuda.synchronize(self._device)
        self._forget()
        pages = [self._take(PAGE_BYTES) for _ in range(1 + max(places.values(), default=-1))]
        for run in _runs(sorted(places)):
            for page in run:
                self._map(page * PAGE_BYTES, PAGE_BYTES, pages[places[page]])
            self._open(run[0] * PAGE_BYTES, len(run) * PAGE_BYTES)

    def close(self) -> None:
        """Give the memory back, which nothing may use any more, and the addresses when torch has forgotten them."""
        if self.address:
            torch.cuda.synchronize(self._device)
            self._forget()
            _closed.append((self.address, self.size_bytes))
            self.address = 0

    def _stand_in(self) -> None:
        piece = self._take(self._piece_bytes)
        for offset in range(0, self.size_bytes, self._piece_bytes):
            self._map(offset, self._piece_bytes, piece)
        self._open(0, self.size_bytes)

    def _take(self, size_bytes: int) -> int:
        handle, properties = ctypes.c_uint64(), _Properties(type=_PINNED, location=self._location())
        which = ctypes.byref(properties), ctypes.c_uint64(0)
        _call("cuMemCreate", ctypes.byref(handle), _size(size_bytes), *which)
        self._handles.append(handle.value)
        return handle.value

    def _map(self, offset: int, size_bytes: int, handle: int) -> None:
        address = self.address + offset
        which = ctypes.c_uint64(handle), ctypes.c_uint64(0)
        _call("cuMemMap", _place(address), _size(size_bytes), _size(0), *which)
        self._mapped.append((address, size_bytes))

    def _open(self, offset: int, size_bytes: int) -> None:
        access = _Access(self._location(), _READ_AND_WRITE)
        address = _place(self.address + offset)
        _call("cuMemSetAccess", address, _size(size_bytes), ctypes.byref(access), _size(1))

    def _forget(self) -> None:
        """Give all memory back, as far as the driver will."""
        for address, size_bytes in self._mapped:
            _call("cuMemUnmap", _place(address), _size(size_bytes), fails=False)
        self._mapped.clear()
        for handle in self._handles:
            _call("cuMemRelease", ctypes.c_uint64(handle), fails=False)
        self._handles.clear()

    def _location(self) -> _Location:
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        return _Location(_ON_DEVICE, index)


def _give_back_closed() -> None:
    """Give closed ranges back in which torch knows nothing any more."""
    if not _closed:
        return
    torch.cuda.empty_cache()  # it forgets what no tensor uses
    known = [each["address"] for each in torch.cuda.memory_snapshot()]
    for first, size_bytes in list(_closed):
        if not any(first <= address < first + size_bytes for address in known):
            _call("cuMemAddressFree", _place(first), _size(size_bytes), fails=False)
            _closed.remove((first, size_bytes))


def _runs(pages: Sequence[int]) -> Iterator[list[int]]:
    """Yield pages that follow one another together."""
    for _, run in groupby(enumerate(pages), lambda each: each[1] - each[0]):
        yield [page for _, page in run]


def _size(number: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def _place(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def _call(name: str, *args: Any, fails: bool = True) -> None:
    code = getattr(driver(), name)(*args)
    if not fails:
        return
    if code == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"{name}: {NO_MEMORY}")
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'').decode()} ({code})")
