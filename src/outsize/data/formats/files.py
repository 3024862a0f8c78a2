"""All files that a job's data is read from: images, labels, bands, lists, and what belongs to them by its name."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from outsize.data.formats.by_name import find_layout
from outsize.data.scenes import labels_path, scene_name, stack_files
from outsize.data.split import SPLITS
from outsize.files.plain import is_address
from outsize.files.walk import files_below
from outsize.job import DataSection


def files_of(data: DataSection, seed: int) -> list[Path]:
    """Return the files, sorted; of a dataset all that lies below its root.

    What an image only points to, such as the sources of a VRT, is not among them.
    """
    layout = find_layout(data, seed)
    if layout.faults:
        raise layout.faults[0]
    images = [path for held in layout.shared.values() for path in held]
    if data.is_dataset:
        named = [Path(name) for split in SPLITS for name in getattr(data, split)]
        below = [each for each in files_below(Path(data.root)) if not _is_hidden(each, Path(data.root))]
        found: set[Path] = {*below, *named, *images}
    else:
        found = set(_with_companions(_named(images, data)))
    return sorted(each for each in found if not is_address(str(each)))


def _named(images: Iterable[Path], data: DataSection) -> Iterator[Path]:
    for image in images:
        yield from stack_files(image, data).values() if data.stack else (image,)
        yield Path(os.path.normpath(labels_path(scene_name(image, data), data.labels)))


def _with_companions(files: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those beside them that are named so and more: a.tfw, a.tif.aux.xml, labels.dbf."""
    beside: dict[Path, list[str]] = {}
    for file in files:
        if file.parent not in beside:
            with os.scandir(file.parent) as entries:
                beside[file.parent] = sorted(each.name for each in entries if each.is_file())
        names, start = beside[file.parent], f"{file.stem}."
        for name in names[bisect.bisect_left(names, start) :]:
            if not name.startswith(start):
                break
            yield file.parent / name


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
