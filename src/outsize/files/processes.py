"""Which process works on something, as text that outlives it; and whether it still runs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """A process that works on something."""

    host: str
    space: str  # in which its number counts: containers of one host have numbers of their own
    boot: str  # of the kernel below it, which containers of one host share
    pid: int
    start: str  # of the process: its number alone is given to another one sooner or later
    verb: str
    since: str

    @property
    def is_near(self) -> bool:
        """Whether its number can be looked up from here."""
        return (self.host, self.space) == here()

    @property
    def is_on_this_kernel(self) -> bool:
        """Whether a lock of the kernel is shared with it."""
        return self.boot != "" and self.boot == boot_id()

    @property
    def runs(self) -> bool:
        """Whether a process that is near still runs."""
        return self.boot == boot_id() and start_of(self.pid) == self.start

    @property
    def is_me_or_above_me(self) -> bool:
        """Whether it is this process, or one that started it: workers work for their owner."""
        if not self.is_near or not self.runs:
            return False
        import psutil

        pids = [os.getpid(), *(each.pid for each in psutil.Process().parents())]
        return self.pid in pids

    def as_dict(self) -> dict[str, Any]:
        """Return what is written of it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"`outsize {self.verb}`, process {self.pid} on {self.host}, since {self.since}"


def me(verb: str) -> Owner:
    """Return this process."""
    since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    host, space = here()
    return Owner(host, space, boot_id(), os.getpid(), start_of(os.getpid()), verb, since)


def owner_from(tree: object) -> Owner | None:
    """Return the process that `as_dict` described; None of what is no such description."""
    if not isinstance(tree, dict):
        return None
    known: dict[str, Any] = {name: tree.get(name) for name in Owner.__dataclass_fields__}
    texts = [value for name, value in known.items() if name != "pid"]
    if type(known["pid"]) is not int or not all(
        isinstance(each, str) and each.isprintable() for each in texts
    ):
        return None
    return Owner(**known)


def start_of(pid: int) -> str:
    """Return what tells a process from an earlier one of its number; nothing where it is over."""
    try:
        # the 22nd field, in ticks since the start of the machine: no clock that is set changes it. The second is a
        # name in brackets, of any letters; the third is Z of a process that is over and waits to be counted.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return "" if fields[0] == "Z" else fields[19]
    except (ProcessLookupError, FileNotFoundError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    import psutil

    try:
        return str(round(psutil.Process(pid).create_time() * 100))
    except psutil.Error:
        return ""


@cache
def boot_id() -> str:
    """Return what names the time since this machine started; nothing where the system does not tell."""
    return _BOOT_ID.read_text(encoding="utf-8").strip() if _BOOT_ID.is_file() else ""


@cache
def here() -> tuple[str, str]:
    """Return what tells whether numbers of processes can be compared: the host, and the container on it."""
    space = Path("/proc/self/ns/pid")
    return platform.node(), str(space.readlink()) if space.is_symlink() else ""
