"""`outsize init FOLDER`: looks at images and labels and writes a commented job file to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import DataError, OutputError, explain, found_in, listed
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import write_text
from outsize.tasks.first_job import CHECK, first_job
from outsize.units import format_count

if TYPE_CHECKING:
    from outsize.data.guess import Guess
    from outsize.data.split import BadFile

_MAX_SHOWN = 5  # files that a warning names


def init(
    folder: Path, *, out: Path | None, overwrite: bool, reporter: Reporter, objects: bool = False
) -> Path:
    """Write a job file for the images and labels in a folder; never over another one unless told to.

    Outlines are classes of pixels unless they shall be `objects`; labels that can only be objects are recognised.
    """
    from outsize.data.guess import guess

    target = folder / "job.toml" if out is None else out
    if target.exists() and not overwrite:
        remedy = "choose another name with --out, or write over it with --overwrite"
        raise OutputError(explain(f"{target} exists", "a file", "a new file", remedy))
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise DataError(explain(f"{folder} cannot be read", what, "a folder of images", "check the path"))
    found = guess(folder, objects=objects)
    run = f"runs/{target.stem if out is not None else folder.resolve().name}"
    text = first_job(found, folder, target, run)
    write_text(target, text)
    _warn_unreadable(found, reporter)
    kind = found.format if found.dataset else "pictures with masks" if found.is_picture else "scenes"
    is_split = found.dataset is not None and found.dataset.is_split
    split = "as distributed" if is_split else f"by {found.split_by}"
    option = _split_option(found, target)
    num_classes = format_count(len(found.classes), "class", "classes")
    lines = [
        f"{format_count(found.num_images, 'image')} ({kind}), {num_classes}, split {split}: {target}",
        f"next: open it{', look at the lines marked CHECK' if CHECK in text else ''}, then run",
        *(f"  outsize {verb} {shlex.quote(str(target))}" for verb in ("check", "plan", "train")),
        *(f"  outsize {verb} {shlex.quote(run)}{option}" for verb in ("predict", "evaluate")),
    ]
    facts = {"job": str(target), "images": found.num_images, "format": found.format}
    reporter.say("init", "\n".join(lines), **facts, classes=[name for name, _, _ in found.classes])
    return target


def _split_option(found: Guess, target: Path) -> str:
    """Return what predict and evaluate need where a dataset as distributed holds no labelled test images."""
    if found.dataset is None or not found.dataset.is_split:
        return ""
    from outsize.data.formats import find_layout

    job = load_job(target)
    return "" if find_layout(job.data, job.seed).shared.get("test") else " --split val"


def _warn_unreadable(found: Guess, reporter: Reporter) -> None:
    bad = found.unreadable
    if not bad:
        return
    named = listed([f"{each.path} ({_what_was_found(each)})" for each in bad], _MAX_SHOWN)
    files = format_count(len(bad), "file")
    text = (
        f"warning: skipped {files} that cannot be read: {named}; "
        "copy what is broken again from its source, or let `outsize check` set it aside: data.max_bad_share"
    )
    reporter.say("warning", text, files=[str(each.path) for each in bad])


def _what_was_found(bad: BadFile) -> str:
    """Return of an error's four parts the second: the last is about rasters as well, not about a single picture."""
    return found_in(bad.reason).replace(f"'{bad.path}' ", "").rstrip(".")
