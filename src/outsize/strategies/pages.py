"""Addresses of a GPU, and the pages of its memory that lie behind them, by the driver's own calls.

reserve     |...........................................|      addresses, and no memory
stand in    |dddd|dddd|dddd|dddd|dddd|dddd|dddd|dddd|ddd|      all of it one small piece: kernels can be recorded
place       |0|1|2|1|0|...                              |      the pages that were asked for; some lie there twice
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

PAGE_BYTES = 2 * 2**20  # the least that a driver hands out
_STAND_IN_BYTES = 64 * 2**20
_PINNED, _ON_DEVICE, _READ_AND_WRITE = (
    1,
    1,
    3,
)  # CU_MEM_ALLOCATION_TYPE_, CU_MEM_LOCATION_TYPE_, CU_MEM_ACCESS_FLAGS_
_NO_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


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
    """A range of addresses on one GPU; closes itself where nobody does."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        self._state = _State(device)
        self.size_bytes = size_bytes // _STAND_IN_BYTES * _STAND_IN_BYTES
        self._close = weakref.finalize(self, self._state.close)
        self._close.atexit = False  # the driver may be gone
        self.address = self._state.reserve(self.size_bytes)
        self._state.stand_in()

    def place(self, places: Mapping[int, int]) -> None:
        """Put pages of memory behind pages of addresses; those that are not named must not be used any more."""
        self._state.place(places)

    def close(self) -> None:
        """Give memory and addresses back; nothing may use them any more."""
        self._close()


class _State:
    """What has to be given back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._address = self._size_bytes = 0
        self._handles: list[int] = []
        self._mapped: list[tuple[int, int]] = []  # address and bytes of each stretch

    def reserve(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        _call("cuMemAddressReserve", ctypes.byref(address), _size(size_bytes), _size(0), _place(0), _size(0))
        self._address, self._size_bytes = address.value, size_bytes
        return self._address

    def stand_in(self) -> None:
        piece = self._take(_STAND_IN_BYTES)
        for offset in range(0, self._size_bytes, _STAND_IN_BYTES):
            self._map(offset, _STAND_IN_BYTES, piece)
        self._open(self._address, self._size_bytes)

    def place(self, places: Mapping[int, int]) -> None:
        self._forget()
        pages = [self._take(PAGE_BYTES) for _ in range(1 + max(places.values(), default=-1))]
        start = before = None
        for page in sorted(places):
            self._map(page * PAGE_BYTES, PAGE_BYTES, pages[places[page]])
            if start is None or before is None or page != before + 1:
                if start is not None and before is not None:
                    self._open(self._address + start * PAGE_BYTES, (before + 1 - start) * PAGE_BYTES)
                start = page
            before = page
        if start is not None and before is not None:
            self._open(self._address + start * PAGE_BYTES, (before + 1 - start) * PAGE_BYTES)

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._forget()
        if self._address:
            _call("cuMemAddressFree", _place(self._address), _size(self._size_bytes))
            self._address = 0

    def _take(self, size_bytes: int) -> int:
        handle, properties = ctypes.c_uint64(), _Properties(type=_PINNED, location=self._location())
        _call(
            "cuMemCreate",
            ctypes.byref(handle),
            _size(size_bytes),
            ctypes.byref(properties),
            ctypes.c_uint64(0),
        )
        self._handles.append(handle.value)
        return handle.value

    def _map(self, offset: int, size_bytes: int, handle: int) -> None:
        address = self._address + offset
        _call(
            "cuMemMap",
            _place(address),
            _size(size_bytes),
            _size(0),
            ctypes.c_uint64(handle),
            ctypes.c_uint64(0),
        )
        self._mapped.append((address, size_bytes))

    def _open(self, address: int, size_bytes: int) -> None:
        access = _Access(self._location(), _READ_AND_WRITE)
        _call("cuMemSetAccess", _place(address), _size(size_bytes), ctypes.byref(access), _size(1))

    def _forget(self) -> None:
        for address, size_bytes in self._mapped:
            _call("cuMemUnmap", _place(address), _size(size_bytes))
        self._mapped.clear()
        for handle in self._handles:
            _call("cuMemRelease", ctypes.c_uint64(handle))
        self._handles.clear()

    def _location(self) -> _Location:
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        return _Location(_ON_DEVICE, index)


def _size(number: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def _place(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def _call(name: str, *args: Any) -> None:
    code = getattr(driver(), name)(*args)
    if code == _NO_MEMORY:
        raise torch.OutOfMemoryError(f"{name}: the GPU has no memory left")
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'').decode()} ({code})")
