"""Runs `outsize` command lines in processes of their own that start at once: libraries are loaded before the fork.

Reads one request per line from stdin (JSON: args, and optionally limit_bytes, unprivileged, kill_after_tiles) and
answers with one line: the exit code, or minus the signal that ended the process, and what it printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from tests import preloaded
from tests.remembered import remembering

from outsize import cli
from outsize.raster.writing import TileStore


def drop_privileges() -> None:
    """Give up the right of root to write where file modes forbid it."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the interface, this process
    nothing = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def kill_after(num_tiles: int) -> None:
    """Have this process killed as it begins to write one tile more than `num_tiles`."""
    write, num_written = TileStore.write, 0

    def write_or_die(store: TileStore, *args: Any) -> None:
        nonlocal num_written
        if num_written == num_tiles:
            os.kill(os.getpid(), signal.SIGKILL)
        num_written += 1
        write(store, *args)

    TileStore.write = write_or_die  # type: ignore[method-assign]


def child(request: dict[str, Any]) -> None:
    if request.get("kill_after_tiles") is not None:
        kill_after(request["kill_after_tiles"])
    if request.get("limit_bytes") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit_bytes"],) * 2)
    if request.get("unprivileged"):
        drop_privileges()
    sys.argv = ["outsize", *request["args"]]
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 (what a user would see as a traceback)
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # taking down a whole torch would take a second


def serve() -> None:
    """Answer requests."""
    preloaded.load()
    with remembering():
        answer()
    os._exit(0)


def answer() -> None:
    """Run each command line in a copy of this process."""
    for line in sys.stdin:
        # pipes, not files, for a limit on the size of files is not meant for what is printed
        pipes = [os.pipe(), os.pipe()]
        pid = os.fork()
        if pid == 0:
            for stream, (_, end) in zip((1, 2), pipes, strict=True):
                os.dup2(end, stream)
            child(json.loads(line))
        printed = []
        for begin, end in pipes:
            os.close(end)
            with os.fdopen(begin) as text:
                printed.append(text.read())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([code, *printed]), flush=True)


if __name__ == "__main__":  # and not in a process that one of ours has begun
    serve()
