"""The verbs of `commands/results` with their options: what a run is, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outsize.cli.options import Aoi, Device, Overrides, Overwrite, Quiet, RunPath, make_reporter
from outsize.measure.address import refuse_little_address_space


def info(run: RunPath, quiet: Quiet = False) -> None:
    """Show what a run is and how far it got."""
    from outsize.commands import results as command

    command.info(run, make_reporter(quiet))


def evaluate(
    run: RunPath,
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[OTHER]", help="Run to compare with.", readable=False),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="test, val or train.")] = "test",
    aoi: Aoi = None,
    quiet: Quiet = False,
) -> None:
    """Score a run's maps against labels, or compare two runs."""
    refuse_little_address_space()
    from outsize.commands import results as command

    if other is None:
        command.evaluate(run, split=split, reporter=make_reporter(quiet), aoi=aoi)
    else:
        command.evaluate_two((run, other), split=split, reporter=make_reporter(quiet), aoi=aoi)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", readable=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write; default: RUN/report.html.", readable=False),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a report of runs: one HTML file that needs no network."""
    from outsize.commands import results as command

    command.report(runs, out=out, reporter=make_reporter(quiet), overwrite=overwrite)


def verify(run: RunPath, set_: Overrides = None, device: Device = "auto", quiet: Quiet = False) -> None:
    """Prove on the run's own model that tiling and the plan did not change the answer."""
    refuse_little_address_space()
    from outsize.commands import results as command

    command.verify(run, overrides=set_ or (), device_name=device, reporter=make_reporter(quiet))


def compare(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Run folders, or files of `outsize bench`.", readable=False),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.", readable=False)] = Path(
        "compare.html"
    ),
    published: Annotated[
        bool, typer.Option("--published", help="Also tables that others published.")
    ] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere/--here", help="Predict the jobs for every machine of the catalogue.")
    ] = True,
    price: Annotated[
        list[str] | None, typer.Option("--price", metavar="NAME=PER_HOUR", help="What a run's machine costs.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Set runs and benches side by side, with published ones and with other machines."""
    from outsize.commands import results as command

    command.compare(
        paths or (),
        out=out,
        published=published,
        elsewhere=elsewhere,
        prices=price or (),
        overwrite=overwrite,
        reporter=make_reporter(quiet),
    )
