"""A job whose paths begin at one root, which may be anywhere; and the same where the root is known again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outsize.job import DataSection, Job
from outsize.packing.names import DATA, RUN

_PATTERNS = ("images", "train", "val", "test")
Tree = dict[str, Any]


def root_of(data: DataSection, files: Iterable[Path]) -> Path:
    """Return the folder that all data lies below, by the names that the job gives it."""
    folders = [str(each.parent) for each in files] + ([data.root] if data.is_dataset else [])
    return Path(os.path.commonpath(folders))


def inner_of(data: DataSection, root: Path) -> str:
    """Return where below the root a dataset is, or patterns begin."""
    return os.path.relpath(data.root, root) if data.is_dataset else "."


def portable(job: Job, root: Path, starts: Mapping[str, str]) -> Job:
    """Return the job with its data below `data/` and its run beside itself; `starts` name weights in the pack."""
    data = job.data
    inner = inner_of(data, root)
    update: Tree = {"root": Path(DATA, inner).as_posix()}
    for name in _PATTERNS:
        patterns = (os.path.relpath(each, root / inner) for each in getattr(data, name))
        update[name] = tuple(map(str, patterns))
    changed: Tree = {"data": data.model_copy(update=update), "run": RUN}
    for key, name in starts.items():
        section, _, field = key.partition(".")
        changed[section] = getattr(job, section).model_copy(update={field: name})
    return job.model_copy(update=changed)


def bind(tree: Tree, folder: Path, where: Path, starts: Mapping[str, str]) -> Tree:
    """Return the tree of a portable job as it is in a folder; `where` its patterns begin, or its dataset is."""
    found = {**tree, "run": str(folder / RUN), "data": {**tree["data"], "root": str(where)}}
    for key, name in starts.items():
        section, _, field = key.partition(".")
        found[section] = {**found[section], field: str(folder / name)}
    return found
