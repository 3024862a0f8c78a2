"""Hands out addresses for a recording, each of them once, to torch's pools of memory.

torch asks a function of C for them, and must not wait for Python meanwhile: another thread may hold that, and wait for
torch. So it is built here once, by the compiler that Triton needs as well.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from outsize.files.beside import written_beside
from outsize.files.cache import folder_for_code
from outsize.files.private import NotPrivateError, refuse_others

_SOURCE = """
#include <stddef.h>
#include <sys/types.h>

enum { PAGE = 2 << 20 };
static char *next, *end;

void outsize_open(void *first, size_t num_bytes) { next = first; end = next + num_bytes; }

size_t outsize_left(void) { return (size_t)(end - next); }

void *outsize_take(ssize_t num_bytes, int device, void *stream)
{
    (void)device; (void)stream;
    size_t whole = ((size_t)num_bytes + PAGE - 1) / PAGE * PAGE;
    if (whole > outsize_left()) return NULL;
    char *taken = next;
    next += whole;
    return taken;
}

void outsize_give(void *taken, size_t num_bytes, void *stream) { (void)taken; (void)num_bytes; (void)stream; }
"""
_SECONDS = 60


class NoAddressesError(RuntimeError):
    """This machine cannot build what hands them out."""


@dataclass(frozen=True)
class Addresses:
    """The function of C, for torch and for us; one range at a time is handed out."""

    for_torch: Any
    _library: Any

    def open(self, address: int, size_bytes: int) -> None:
        """Hand out addresses of this range from now on."""
        self._library.outsize_open(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))

    def left_bytes(self) -> int:
        """Return how many were not handed out yet."""
        return int(self._library.outsize_left())


@cache
def addresses() -> Addresses:
    """Build and load it; raises NoAddressesError."""
    path = _built()
    library = ctypes.CDLL(str(path))
    library.outsize_left.restype = ctypes.c_size_t
    plugged = torch.cuda.memory.CUDAPluggableAllocator(str(path), "outsize_take", "outsize_give")
    return Addresses(plugged.allocator(), library)


def _built() -> Path:
    name = f"addresses-{platform.machine()}-{hashlib.sha256(_SOURCE.encode()).hexdigest()[:12]}.so"
    try:
        path = folder_for_code() / name
        if path.is_file():
            refuse_others(path)
            return path
    except NotPrivateError as error:
        raise NoAddressesError(f"compiled code is kept where nobody else can write, and {error}") from error
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NoAddressesError("there is no C compiler (set CC, or install gcc)")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "addresses.c"), Path(folder, name)
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(built), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
            with written_beside(path) as beside:  # others may build it, too
                shutil.copyfile(built, beside)
                beside.chmod(0o700)
        except subprocess.CalledProcessError as error:
            raise NoAddressesError(f"{compiler}: {error.stderr.strip()[:200]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoAddressesError(f"{compiler}: {error}") from error
    return path
