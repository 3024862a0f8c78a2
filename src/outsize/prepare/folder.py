"""Fills one folder with prepared files, alone in it, and says what became of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from outsize.errors import DataError, explain
from outsize.files.locks import holding
from outsize.files.ownership import refuse_place
from outsize.job import PrepareSection
from outsize.prepare.all import SET_ASIDE, FolderFilled, make_missing
from outsize.prepare.piece import Piece
from outsize.prepare.workers import workers
from outsize.progress import Reporter
from outsize.runs import leaving_no_empty_folder, output_errors
from outsize.units import format_count

_LOCK = ".outsize.lock"


def prepare_folder(
    pieces: Sequence[Piece],
    folder: Path,
    section: PrepareSection,
    *,
    version: str,
    reporter: Reporter,
    take_over: bool = False,
) -> FolderFilled:
    """Make what is missing in a folder, by processes or on a cluster. Raises DataError where too much is set aside."""
    refuse_place(folder, "the folder of what is prepared", "name another one in prepare.to")
    num = min(section.workers or len(os.sched_getaffinity(0)), len(pieces))
    with leaving_no_empty_folder(folder):
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with (
            holding(folder / _LOCK, f"folder {folder}", "prepare", take_over=take_over),
            workers(num, section.scheduler, timeout_s=section.timeout_s) as by,
        ):
            done = make_missing(pieces, folder, by, version=version, reporter=reporter)
    removed = f", {format_count(done.num_removed, 'file')} removed" if done.num_removed else ""
    reporter.say(
        "prepare",
        f"{done.num_made:,} prepared, {done.num_there:,} there before, {len(done.set_aside):,} set aside{removed}: "
        f"{folder}",
        made=done.num_made,
        there=done.num_there,
        set_aside=dict(done.set_aside),
        removed=done.num_removed,
        shared_s=round(done.shared_s, 3),
        workers=done.num_workers,
    )
    if len(done.set_aside) > section.max_bad_share * len(pieces):
        raise _too_many(done, len(pieces), section.max_bad_share, folder)
    return done


def _too_many(done: FolderFilled, num_all: int, max_bad_share: float, folder: Path) -> DataError:
    name, why = min(done.set_aside.items())
    found = f"{len(done.set_aside):,} set aside, first {name} ({why})"
    need = (
        f"all {num_all:,}" if not max_bad_share else f"at most {max_bad_share:.1%} of {num_all:,} set aside"
    )
    remedy = f"see {folder / SET_ASIDE}, mend or remove them and repeat, or set prepare.max_bad_share"
    return DataError(explain("not all files could be prepared", found, need, remedy))
