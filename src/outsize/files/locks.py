"""One owner at a time: a lock file says which process works on a run or an output, and the kernel holds it.

    kernel   a lock of the process (fcntl): it ends with it however it ends, and no child inherits it
    text     host, number and start of the process: for messages, other hosts, and file systems without locks

The file goes when the work is done. One that was left is taken over where its process is surely gone; of another host
that cannot be known, and a user has to say so. What a process holds, those that it started may enter, too: of several
processes of one job the first holds the lock for all.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from outsize.errors import InUseError, explain
from outsize.files.processes import Owner, me, owner_from
from outsize.files.trees import json_tree

_MOST_BYTES = 4096
_WAIT_S = 0.05
_MOST_ATTEMPTS = 40
_ANOTHER = "another process at work"
_HELD = {errno.EACCES, errno.EAGAIN}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

# A lock of the kernel is a process's: its threads are told apart here. It would be lost when any handle of the file is
# closed, so nobody else in this process may open a file that is held.
_mine: dict[Path, tuple[int, int, Owner]] = {}  # by file: process, thread
_guard = threading.Lock()


class _BusyError(Exception):
    """Somebody holds it now."""

    def __init__(self, owner: Owner | None) -> None:
        super().__init__()
        self.owner = owner

    @property
    def is_settled(self) -> bool:
        """Whether the name in the file is the holder's: it takes a moment to write it, or only to look."""
        return self.owner is not None and (not self.owner.is_near or self.owner.runs)


@contextmanager
def holding(
    path: Path,
    what: str,
    verb: str,
    *,
    take_over: bool = False,
    wait: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; `what` is what it stands for, in an error.

    With `take_over` a lock that was left on another host counts as free. With `wait` others are waited for, which is
    for locks that are held for a moment. `tell` is called with what was taken over. Raises InUseError, OSError.
    """
    path = path.parent.resolve() / path.name
    for attempt in count():
        try:
            handle = _take(path, what, verb, take_over, tell)
            break
        except _BusyError as busy:
            if not wait and (busy.is_settled or attempt >= _MOST_ATTEMPTS):
                raise _in_use(what, _ANOTHER if busy.owner is None else str(busy.owner)) from None
            time.sleep(_WAIT_S)
    try:
        yield
    finally:
        if handle is not None and _mine[path][0] == os.getpid():  # and not a copy of the process
            with _guard:
                del _mine[path]
                with suppress(OSError):
                    path.unlink()
                os.close(handle)


def holder_of(path: Path) -> str | None:
    """Say who else holds a lock now; None where nobody does, or it was left, or the holder works for this process."""
    path = path.parent.resolve() / path.name
    with _guard:
        held = _mine.get(path)
        if held is not None and held[0] == os.getpid():
            return None if held[1] == threading.get_ident() else str(held[2])
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            owner = _seize(handle)[0]
            is_held = owner is not None and owner.is_near and owner.runs
        except _BusyError as busy:
            owner, is_held = busy.owner, True
        finally:
            os.close(handle)
    if not is_held or (owner is not None and owner.is_me_or_above_me):
        return None
    return _ANOTHER if owner is None else str(owner)


def refuse_held(path: Path, what: str) -> None:
    """Refuse what somebody else holds now, without taking it. Raises InUseError."""
    holder = holder_of(path)
    if holder is not None:
        raise _in_use(what, holder)


def _take(path: Path, what: str, verb: str, take_over: bool, tell: Callable[[str], object]) -> int | None:
    """Return a handle that holds the lock; None where this process, or one above it, holds it already."""
    with _guard:
        held = _mine.get(path)
        if held is not None and held[0] == os.getpid():
            if held[1] == threading.get_ident():
                return None
            raise _BusyError(held[2])
        while True:
            handle = _open(path)
            try:
                left, by_kernel = _seize(handle)
                if not _is_at(handle, path):  # its owner was just removing it
                    os.close(handle)
                    continue
                if left is not None and left.is_me_or_above_me:
                    os.close(handle)
                    return None
                _refuse(left, by_kernel or take_over, path, what, tell)
                owner = me(verb)
                _write(handle, owner)
            except _BusyError as busy:
                os.close(handle)
                if busy.owner is not None and busy.owner.is_me_or_above_me:
                    return None
                raise
            except BaseException:
                os.close(handle)
                raise
            _mine[path] = (os.getpid(), threading.get_ident(), owner)
            return handle


def _open(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's: it can be read at best
        with suppress(OSError), path.open("rb") as file:
            owner = _read(file.fileno())
            if owner is not None:
                raise _BusyError(owner) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "something else than a plain file")
    return handle


def _seize(handle: int) -> tuple[Owner | None, bool]:
    """Have the kernel lock the file; return who left a name in it, and whether the kernel knows that it is over."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise _BusyError(_read(handle)) from None
        if error.errno not in _NO_LOCKS:
            raise
        return _read(handle), False
    left = _read(handle)
    return left, left is not None and left.is_on_this_kernel


def _refuse(left: Owner | None, may_take: bool, path: Path, what: str, tell: Callable[[str], object]) -> None:
    """Refuse a lock whose owner runs, or may run elsewhere; say whose it was that is taken over."""
    if left is None:
        return
    if left.is_near and left.runs:
        raise _BusyError(left)
    if not left.is_near and not may_take:
        need = "to know that it is over, which cannot be seen from here"
        remedy = f"if it is over, say --take-over or remove {path}; else wait for it, or choose another place"
        raise InUseError(explain(f"{what} was left locked on another host", left, need, remedy))
    tell(f"{what} was left locked by {left}, which is over: taken over")


def _in_use(what: str, holder: str) -> InUseError:
    need, remedy = "one process at a time", "wait for it or end it, or choose another place"
    return InUseError(explain(f"{what} is in use", holder, need, remedy))


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _read(handle: int) -> Owner | None:
    """Return who wrote a name into a lock file; one that was copied with its folder names nobody."""
    try:
        tree = json_tree(os.pread(handle, _MOST_BYTES, 0))
    except ValueError:
        return None
    if not isinstance(tree, dict) or tree.get("file") != os.fstat(handle).st_ino:
        return None
    return owner_from(tree)


def _write(handle: int, owner: Owner) -> None:
    text = json.dumps({**owner.as_dict(), "file": os.fstat(handle).st_ino}, indent=1) + "\n"
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode(), 0)
    os.fsync(handle)  # for other hosts
