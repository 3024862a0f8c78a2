"""What was found out about a machine and outlives runs: a file for each finding, in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from outsize.files.beside import written_beside
from outsize.files.private import NotPrivateError, private_folder, read_own, refuse_others
from outsize.files.trees import json_tree
from outsize.measure.machine.shared import is_shared

Finding = TypeVar("Finding")  # a dataclass, or None where there is nothing to remember

_MOST_BYTES = 2**24  # a step of 10,000 operations takes a few hundred KiB


def recall_or_make(
    folder: Path | None,
    name: str,
    device: torch.device,
    *,
    read: Callable[[Path], Finding | None],
    make: Callable[[], Finding],
    lasts: Callable[[Finding], bool] = lambda _: True,
    tell: Callable[[str], object] = lambda _: None,
) -> Finding:
    """Return what `read` finds in the file of this name, or make it now and remember it, if it `lasts`.

    `read` returns None for a file that is not there, broken or not sound: it is made anew. What is found out while
    others use the device is good for now at most; `tell` is told.
    """
    if folder is not None and not _is_ours(folder, tell):
        folder = None
    known = None if folder is None else read(folder / name)
    if known is not None:
        return known
    others = is_shared(device)
    made = make()
    if others or is_shared(device):
        tell(f"others are at work on {device}: times are those beside them, and will not be remembered")
    elif folder is not None and made is not None and lasts(made):
        remember(folder, name, made)
    return made


def recalled(path: Path) -> Any:
    """Return what a file of this folder holds; OSError or ValueError where it is not there, not ours, or broken."""
    try:
        return json_tree(read_own(path, _MOST_BYTES))
    except NotPrivateError as error:
        raise ValueError(str(error)) from error


def is_between(least: float, values: Iterable[object], most: float) -> bool:
    """Say whether all are numbers, and make sense."""
    return all(type(each) in (int, float) and least <= each <= most for each in values)  # type: ignore[operator]


def remember(folder: Path, name: str, finding: object) -> None:
    """Write a finding, or another one in its place."""
    _write(folder / name, asdict(finding))  # type: ignore[call-overload]


def remember_tree(folder: Path, name: str, tree: dict[str, Any]) -> None:
    """Write what is a tree already, where the folder is ours."""
    if _is_ours(folder, lambda _: None):
        _write(folder / name, tree)


def key_of(names: Iterable[str]) -> str:
    """Return a short name for all these together, for the name of a file."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def code_of(*modules: ModuleType) -> list[str]:
    """Return what changes with the code of modules: what they found out before may be wrong."""
    paths = [Path(each.__file__) for each in modules if each.__file__ is not None]
    return [_hash_of(path) for path in paths]


def code_in(package: ModuleType) -> list[str]:
    """Return what changes with the code of any module of a package, whether it was imported or not."""
    paths = [path for folder in package.__path__ for path in sorted(Path(folder).rglob("*.py"))]
    return [f"{path.name} {_hash_of(path)}" for path in paths]


def cache_folder() -> Path | None:
    """Return the folder that outlives runs, or None where a user has none."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if asked and Path(asked).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(asked) / "outsize"
    try:
        return Path.home() / ".cache" / "outsize"
    except RuntimeError:  # no such user in the container
        return None


def folder_for_code() -> Path:
    """Return the folder for compiled code, in which nobody else can write. Raises NotPrivateError, OSError."""
    folder = cache_folder()
    if folder is None:
        return folder_for_now()
    private_folder(folder)
    refuse_others(folder)
    return folder


def folder_for_now() -> Path:
    """Return a folder of this user that lasts as long as the process."""
    return Path(_for_now().name)


@cache
def _for_now() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="outsize-")


def fingerprint(device: torch.device) -> str:
    """Return what names a device, its driver and this torch in the names of files."""
    parts = [device_name(device), driver(device), torch.__version__]
    if device.type != "cuda":
        parts.append(f"{torch.get_num_threads()} threads")
    return key_of(parts)


def device_name(device: torch.device) -> str:
    """Return what the maker calls a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver(device: torch.device) -> str:
    """Return the line in which Linux tells the version of the driver; elsewhere that of CUDA must do."""
    if device.type != "cuda":
        return ""
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0].strip()
    return f"CUDA {torch.version.cuda}"


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, tree: dict[str, Any]) -> None:
    """Write the file whole or not at all; a folder that cannot be written to costs a measurement each time, no more."""
    with contextlib.suppress(OSError), written_beside(path) as draft:
        draft.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def _is_ours(folder: Path, tell: Callable[[str], object]) -> bool:
    try:
        private_folder(folder)
    except NotPrivateError as error:
        tell(f"{error}: nothing is recalled from there, and nothing remembered")
        return False
    except OSError:  # no room, or no right to write: costs a measurement each time, no more
        return False
    return True
