"""Opens HDF5 files, which netCDF-4 files are too, without letting them lead anywhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, JobError, UnsafeFileError, explain, one_line
from outsize.files.plain import is_plain

_MAGIC = b"\x89HDF\r\n\x1a\n"
_MOST_VALUES = 2**31  # of one dataset


def is_hdf5(path: Path) -> bool:
    """Say whether a file is HDF5, by its first bytes and not by its name."""
    is_plain(path)
    with path.open("rb", buffering=0) as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file for reading; what goes wrong inside is reported in one line."""
    try:
        import h5py
    except ImportError as error:
        need, remedy = "h5py", "pip install 'outsize[radar]'"
        raise JobError(explain(f"{path} cannot be read", "HDF5, and no h5py", need, remedy)) from error
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        need, remedy = "a whole HDF5 file", "copy it again from its source"
        raise DataError(explain(f"{path} cannot be read", one_line(error), need, remedy)) from error


def datasets(file: Any) -> dict[str, Any]:
    """Return the datasets of a file by their names; what is elsewhere than in it is refused."""
    import h5py

    found: dict[str, Any] = {}
    groups = [("", file)]
    while groups:
        place, group = groups.pop()
        for name in group:
            if isinstance(group.get(name, getlink=True), h5py.ExternalLink | h5py.SoftLink):
                continue  # nothing of what is read here is named by one
            each = group[name]
            if isinstance(each, h5py.Group):
                if f"{place}{name}".count("/") < 8:  # hard links may go round in a circle
                    groups.append((f"{place}{name}/", each))
            elif isinstance(each, h5py.Dataset):
                found[f"{place}{name}"] = each
    return found


def refuse_elsewhere(path: Path, dataset: Any) -> None:
    """Refuse numbers that lie in another file, or more of them than a frame has."""
    if dataset.is_virtual or dataset.external:
        found, need = f"{dataset.name} lies in another file", "numbers of its own"
        raise UnsafeFileError(explain(f"{path} leads elsewhere", found, need, "copy the numbers into it"))
    if math.prod(dataset.shape) > _MOST_VALUES:
        found = f"{dataset.name} of {' x '.join(map(str, dataset.shape))}"
        raise UnsafeFileError(
            explain(
                f"{path} claims an impossible size", found, f"at most {_MOST_VALUES:,}", "cut it in parts"
            )
        )


def attribute(of: Any, name: str, default: Any = None) -> Any:
    """Return an attribute as a plain value: text, a number, or an array of several."""
    if name not in of.attrs:
        return default
    value = of.attrs[name]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        value = value.ravel()
        return attribute_item(value[0]) if value.size == 1 else value
    return attribute_item(value)


def attribute_item(value: Any) -> Any:
    """Return one value of an attribute as Python's own."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value


def unpacked(raw: NDArray[Any], gain: float, offset: float) -> NDArray[np.float32]:
    """Turn stored numbers into what they stand for."""
    return (raw.astype(np.float64) * gain + offset).astype(np.float32)
