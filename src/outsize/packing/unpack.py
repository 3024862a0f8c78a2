"""Unpacks a job where it is to go on: everything checked first, then one folder that is whole or not there.

head and lists --> data at its root? --> files into a folder beside --> all there? --> bound --> renamed
                   sizes, checksums      names, sizes, checksums        where data and run are from now on
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from outsize.errors import DataError, OutputError, explain, listed
from outsize.files.beside import folder_beside
from outsize.files.manifest import sha256_of
from outsize.files.ownership import mark
from outsize.files.plain import read_plain_text
from outsize.files.trees import toml_tree
from outsize.job import load_job
from outsize.job.load import MOST_JOB_BYTES
from outsize.packing.archive import Files, damaged, read_whole, reading, take_out
from outsize.packing.lists import MOST_HEAD_BYTES, MOST_LIST_BYTES, Listed, read_head, read_list
from outsize.packing.names import DATA, DATA_LIST, HEAD, JOB, MANIFEST, RUN, SCRIPT
from outsize.packing.portable import bind
from outsize.planning.slurm import Allocation, slurm_script
from outsize.progress import Reporter
from outsize.runs import leaving_no_empty_folder, output_errors, write_text
from outsize.units import format_bytes, format_count

_NUM_TOLD = 3


@dataclass(frozen=True)
class Unpacked:
    """A job where it goes on; its data is below `root` unless some of it is `missing` there."""

    folder: Path
    head: dict[str, Any]
    root: Path
    missing: tuple[str, ...] = ()


def unpack(path: Path, folder: Path | None, root: Path | None, reporter: Reporter) -> Unpacked:
    """Check a pack and leave its files in a new folder, bound to where the data is: at `root` where that is given.

    A folder without another to go to stays where it is: as it was packed it is checked, once unpacked only bound again.
    """
    with reading(path) as files:
        texts = _heads(files, path)
        head = read_head(texts[HEAD], path)
        manifest, data = (read_list(name, texts[name], head, path) for name in (MANIFEST, DATA_LIST))
        along = {f"{DATA}/{name}": each for name, each in data.items()} if head["data"]["along"] else {}
        wanted = manifest | along
        if folder is None and path.is_dir():
            if _is_as_packed(path, manifest):
                _take_all(files, wanted, None, path, reporter)
            found = _place(path, head, data, root, reporter)
            with output_errors(path):
                _bind_in(path, found)
            return found
        folder = folder or Path(head["job"])
        _refuse_used(folder)
        found = _place(folder, head, data, root, reporter)
        with leaving_no_empty_folder(folder.parent), output_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _refuse_no_room(wanted, folder)
            with folder_beside(folder) as new:
                _take_all(files, wanted, new, path, reporter)
                for name, text in texts.items():
                    (new / name).write_bytes(text)
                _bind_in(new, found)
    return found


def _heads(files: Files, path: Path) -> dict[str, bytes]:
    """Read the head and the lists, which come first."""
    found = {}
    for wanted, most_bytes in (
        (HEAD, MOST_HEAD_BYTES),
        (MANIFEST, MOST_LIST_BYTES),
        (DATA_LIST, MOST_LIST_BYTES),
    ):
        name, _, file = next(files, ("", 0, None))
        if file is None or name != wanted:
            raise damaged(path, f"{name or 'nothing'!r} where {wanted} should be")
        found[wanted] = read_whole(name, file, most_bytes, path)
    return found


def _place(
    folder: Path, head: dict[str, Any], data: Listed, root: Path | None, reporter: Reporter
) -> Unpacked:
    """Return where the data is: in the pack, where the user says, or where it was, on a disk of both machines."""
    final = folder.resolve()
    if head["data"]["along"] and root is None:
        return Unpacked(final, head, final / DATA)
    asked = Path(head["data"]["root"]) if root is None else root
    missing = _missing(asked, data, reporter)
    if missing and root is not None:
        names = listed(missing, _NUM_TOLD)
        found = f"{len(missing):,} of {format_count(len(data), 'file')} not there as packed: {names}"
        remedy = f"copy them there ({DATA_LIST} in the pack names all), or correct --data-root"
        raise DataError(explain(f"the data of the job is not at {root}", found, "all of it", remedy))
    return Unpacked(final, head, final / DATA if missing else asked.resolve(), tuple(missing))


def _missing(root: Path, data: Listed, reporter: Reporter) -> list[str]:
    """Return the files that are not below a folder with the size and the checksum they had."""
    present: list[str] = []
    missing: list[str] = []
    for name, known in data.items():
        try:
            is_there = (root / name).is_file() and (root / name).stat().st_size == known.size_bytes
        except OSError:
            is_there = False
        (present if is_there else missing).append(name)
    if missing:  # before gigabytes are read
        return missing
    with reporter.bar("checksums", sum(each.size_bytes for each in data.values()), "byte") as bar:
        for name in present:
            try:
                is_same = sha256_of(root / name) == data[name].sha256
            except OSError:
                is_same = False
            missing += [] if is_same else [name]
            bar.advance(data[name].size_bytes)
    return missing


def _is_as_packed(folder: Path, manifest: Listed) -> bool:
    """Whether a folder was never bound: its job still names the data by where it was packed."""
    known = manifest.get(JOB)
    try:
        return known is None or sha256_of(folder / JOB) == known.sha256
    except OSError:
        return True


def _take_all(files: Files, wanted: Listed, new: Path | None, path: Path, reporter: Reporter) -> None:
    """Copy all files into a new folder, or only look whether they are as they were packed."""
    left = dict(wanted)
    with reporter.bar("unpack", sum(each.size_bytes for each in wanted.values()), "byte") as bar:
        for name, size_bytes, file in files:
            known = left.pop(name, None)
            if known is None or size_bytes != known.size_bytes:
                raise damaged(
                    path, f"{name!r}, which is {'not listed' if known is None else 'of another size'}"
                )
            take_out(name, file, known, new, path)
            bar.advance(size_bytes)
    if left:
        raise damaged(path, f"{format_count(len(left), 'file')} too few: {listed(list(left), _NUM_TOLD)}")


def _bind_in(here: Path, found: Unpacked) -> None:
    """Write down in a folder where the job, its run and its data are; `here` is it until it has its name."""
    starts = found.head["starts"]
    job = here / JOB
    tree = bind(_tree(job), found.folder, found.root / found.head["data"]["inner"], starts)
    write_text(job, tomli_w.dumps(tree))
    load_job(job)
    begun = here / RUN / JOB
    if begun.is_file():
        data = {"data": tree["data"]}  # of the same files, wherever they were before
        write_text(
            begun, tomli_w.dumps(bind({**_tree(begun), **data}, found.folder, Path(tree["data"]["root"]), {}))
        )
        load_job(begun)
        mark(here / RUN)
    name = found.head["job"]
    script = slurm_script(
        Allocation(**found.head["allocation"]),
        ["train", str(found.folder / JOB), "--resume"],
        name=name,
        folder=found.folder,
        log=found.folder / f"{name}.out",
        python=sys.executable,
    )
    write_text(here / SCRIPT, script)


def _tree(path: Path) -> dict[str, Any]:
    try:
        return toml_tree(read_plain_text(path, MOST_JOB_BYTES))
    except ValueError as error:
        raise damaged(path, str(error)) from error


def _refuse_used(folder: Path) -> None:
    inside = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    if inside or (os.path.lexists(folder) and not folder.is_dir()):
        found = listed(inside) or "a file"
        need, remedy = "a new or empty folder", "choose another with --to"
        raise OutputError(explain(f"{folder} is in use", found, need, remedy))


def _refuse_no_room(wanted: Listed, folder: Path) -> None:
    needed = sum(each.size_bytes for each in wanted.values())
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        remedy = "free space or choose another folder with --to"
        found = f"{format_bytes(free)} free"
        raise OutputError(explain(f"{folder} has no room", found, f"{format_bytes(needed)}", remedy))
