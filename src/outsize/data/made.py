"""Labels that are made once, from colours or outlines, and kept in the run folder, as pictures or as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from outsize.errors import RunError, explain
from outsize.raster import disk
from outsize.raster.reading import SceneInfo, describe

_KEY = "outsize"  # the text of a PNG that says what it was made of
# what numpy raises for a file that is not as it wrote it
_BROKEN = (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError)


def made_labels(image: Path, cache: Path, key: str, make: Callable[[], NDArray[np.uint8]]) -> SceneInfo:
    """Describe the labels that were made for an image; make them where those in `cache` are of another key."""
    from PIL import Image, PngImagePlugin

    target = cache / f"{image.stem}-{digest(str(image.resolve()), 8)}.png"
    if not _is_made_of(target, key):
        with disk.disk_errors(cache):  # by several threads or processes at once
            cache.mkdir(parents=True, exist_ok=True)
        about = PngImagePlugin.PngInfo()
        about.add_text(_KEY, key)
        with disk.replacing(target) as partial:
            # few classes in large areas: the quickest compression is as good as any
            Image.fromarray(make()).save(partial, "PNG", pnginfo=about, compress_level=1)
    return describe(target)


def write_arrays(target: Path, arrays: Mapping[str, Any], key: str) -> None:
    """Write arrays, whole or not at all; `key` says what they were made of."""
    with disk.disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with disk.replacing(target) as partial, partial.open("wb") as file:
        np.savez(file, **arrays, key=np.array(key))


def read_arrays(path: Path, names: Iterable[str], what: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of these names, which hold `what` of a scene."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in names}
    except _BROKEN as error:
        remedy = "run `outsize check` again, which makes a new one"
        raise RunError(explain(f"{path} cannot be read", error, f"{what} of a scene", remedy)) from error


def are_made_of(path: Path, key: str) -> bool:
    """Say whether a file holds the arrays that `key` names."""
    if not path.is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as held:
            return bool(str(held["key"]) == key)
    except _BROKEN:  # half written by another program, or of another make
        return False


def digest(text: str, length: int = 32) -> str:
    """Name a text by a few letters."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def stamp(path: Path) -> str:
    """Name a file as it is now."""
    about = path.stat()
    return f"{path.resolve()} {about.st_size} {about.st_mtime_ns}"


def truth_beside(seen: Path) -> Path:
    """Return where the frames that follow are, beside those that are seen."""
    return seen.with_name(f"{seen.stem}-truth.vrt")


def _is_made_of(target: Path, key: str) -> bool:
    from PIL import Image

    if not target.is_file():
        return False
    with Image.open(target, formats=("PNG",)) as opened:
        return bool(opened.info.get(_KEY) == key)
