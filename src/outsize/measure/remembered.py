"""Findings that outlive runs, of machines, steps and jobs: a file for each, in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from outsize.files.beside import written_beside
from outsize.files.cache import cache_folder
from outsize.files.private import NotPrivateError, private_folder, read_own
from outsize.files.trees import json_tree
from outsize.measure.shared import is_shared

Finding = TypeVar("Finding")  # a dataclass, or None where there is nothing to remember

_MOST_BYTES = 2**24  # a step of 10,000 operations takes a few hundred KiB


def recall_or_make(
    name: str,
    device: torch.device,
    *,
    read: Callable[[Any], Finding | None],
    make: Callable[[], Finding],
    lasts: Callable[[Finding], bool] = lambda _: True,
    warn: Callable[[str], object] = lambda _: None,
) -> Finding:
    """Return what `read` makes of the file of this name, or make it now and remember it, if it `lasts`.

    `read` gets the tree that the file holds; it returns None, or raises, where that is broken or not sound: then it is
    made again. What is found out while others use the device is good for now at most.
    """
    folder = _own_folder(warn)
    known = None if folder is None else _recall(folder / name, read)
    if known is not None:
        return known
    others = is_shared(device)
    made = make()
    if others or is_shared(device):
        warn(f"others are at work on {device}: times are those beside them, and will not be remembered")
    elif folder is not None and made is not None and lasts(made):
        _write(folder / name, asdict(made))  # type: ignore[call-overload]
    return made


def recall(name: str, read: Callable[[Any], Finding | None]) -> Finding | None:
    """Return what `read` makes of the file of this name; None where there is none, or it is broken."""
    folder = cache_folder()
    return None if folder is None else _recall(folder / name, read)


def remember(name: str, tree: dict[str, Any]) -> None:
    """Write what `recall` is to find, or another tree in its place."""
    folder = _own_folder(lambda _: None)
    if folder is not None:
        _write(folder / name, tree)


def is_between(least: float, values: Iterable[object], most: float) -> bool:
    """Say whether all are numbers, and make sense."""
    return all(type(each) in (int, float) and least <= each <= most for each in values)  # type: ignore[operator]


def key_of(names: Iterable[str]) -> str:
    """Return a short name for all these together, for the name of a file."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def code_of(*modules: ModuleType) -> list[str]:
    """Return what changes with the code of modules, and of all in packages: what they found out before may be wrong."""
    found = []
    for each in modules:
        paths = [
            path for folder in getattr(each, "__path__", ()) for path in sorted(Path(folder).rglob("*.py"))
        ]
        for path in paths or [Path(str(each.__file__))]:
            found.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return found


def text_of(model: nn.Module) -> str:
    """Return a text that differs where models do: modules with their settings, parameters with their sizes."""
    sizes = (f"{name} {tuple(each.shape)} {each.requires_grad}" for name, each in model.named_parameters())
    return "\n".join([repr(model), *sizes])


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


def _write(path: Path, tree: dict[str, Any]) -> None:
    """Write the file whole or not at all; a folder that cannot be written to costs a measurement each time, no more."""
    with contextlib.suppress(OSError), written_beside(path) as draft:
        draft.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def _own_folder(warn: Callable[[str], object]) -> Path | None:
    """Return the folder of findings; None where there is none, or others may have put something there."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        private_folder(folder)
    except NotPrivateError as error:
        warn(f"{error}: nothing is recalled from there, and nothing remembered")
        return None
    except OSError:  # no room, or no right to write: costs a measurement each time, no more
        return None
    return folder


def _recall(path: Path, read: Callable[[Any], Finding | None]) -> Finding | None:
    try:
        return read(json_tree(read_own(path, _MOST_BYTES)))
    except (NotPrivateError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
