"""The verbs of `commands/data` with their options: files fetched, a job written, files prepared, all read once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outsize.cli.options import JobPath, Overrides, Quiet, TakeOver, make_reporter


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of images and labels.", readable=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Job file to write; default: FOLDER/job.toml.", readable=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over an existing file.")] = False,
    objects: Annotated[
        bool, typer.Option("--objects", help="Find single objects instead of a class for each pixel.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Look at images and labels and write a commented job file."""
    from outsize.commands import data as command

    command.init(folder, out=out, overwrite=overwrite, reporter=make_reporter(quiet), objects=objects)


def acquire(
    source: Annotated[
        str,
        typer.Argument(metavar="LIST", help="File of addresses, job file with [acquire], or one address."),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Where files go; default: raw.", readable=False),
    ] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, max=64, help="Files at once.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Requests begun in a second, at most.")
    ] = None,
    tries: Annotated[int | None, typer.Option("--tries", min=1, help="Of each file.")] = None,
    set_: Overrides = None,
    take_over: TakeOver = False,
    quiet: Quiet = False,
) -> None:
    """Fetch the files of a list; repeated, what is missing of them."""
    from outsize.commands import data as command

    asked = {"parallel": parallel, "rate_per_s": rate, "tries": tries}
    changes: dict[str, object] = {key: value for key, value in asked.items() if value is not None}
    command.acquire(
        source,
        to=to,
        changes=changes,
        overrides=set_ or (),
        reporter=make_reporter(quiet),
        take_over=take_over,
    )


def prepare(
    job: JobPath,
    set_: Overrides = None,
    num_workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes of this machine; default: its cores.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster: tcp://host:8786.")
    ] = None,
    take_over: TakeOver = False,
    quiet: Quiet = False,
) -> None:
    """Make of raw files what training reads; repeated, what is missing or has changed."""
    from outsize.commands import data as command

    if num_workers is not None and scheduler is not None:
        raise typer.BadParameter("--workers and --scheduler exclude each other")
    changes: dict[str, object] = {}
    if num_workers is not None or scheduler is not None:
        changes = {"workers": num_workers, "scheduler": scheduler}
    command.prepare(
        job, overrides=set_ or (), changes=changes, reporter=make_reporter(quiet), take_over=take_over
    )


def check(job: JobPath, set_: Overrides = None, quiet: Quiet = False) -> None:
    """Read all data once and say what is wrong with it."""
    from outsize.commands import data as command

    command.check(job, overrides=set_ or (), reporter=make_reporter(quiet))
