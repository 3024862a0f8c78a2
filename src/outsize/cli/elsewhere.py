"""The verbs that carry a job to other machines, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outsize.cli.options import JobPath, Overrides, Overwrite, Quiet, make_reporter
from outsize.measure.address import refuse_little_address_space

# what the script asks of a cluster
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines that the script asks for.")]
GpusEach = Annotated[int, typer.Option("--gpus", min=1, help="Ranks on each machine, one for each GPU.")]
TheirGpu = Annotated[
    str | None, typer.Option("--gpu", help="GPU of those machines, such as v100-16; default: as here.")
]
TimeLimit = Annotated[
    int | None, typer.Option("--minutes", min=1, help="Time limit; default: what the plan asks for.")
]


def launch(
    job: JobPath,
    set_: Overrides = None,
    *,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write a script for Slurm.")] = False,
    nodes: Nodes = 1,
    gpus: GpusEach = 1,
    gpu: TheirGpu = None,
    minutes: TimeLimit = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Script to write; default: JOB.slurm.sh.", readable=False),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit/--dry-run", help="Submit it, or write it only.")] = True,
    quiet: Quiet = False,
) -> None:
    """Write a script that trains the job on several machines, and submit it."""
    refuse_little_address_space()
    from outsize.commands import elsewhere as command

    if not slurm:
        raise typer.BadParameter("say for what: --slurm")
    command.launch(
        job,
        overrides=set_ or (),
        ranks=(nodes, gpus),
        gpu=gpu,
        minutes=minutes,
        out=out,
        submits=submit,
        reporter=make_reporter(quiet),
    )


def pack(
    job: JobPath,
    set_: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="NAME.tar, NAME.tar.gz or a folder; default: JOB.tar.", readable=False
        ),
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="Take the data along, not only its list.")] = False,
    nodes: Nodes = 1,
    gpus: GpusEach = 1,
    gpu: TheirGpu = None,
    minutes: TimeLimit = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Pack a job for another machine: training so far, versions, list of the data, script, containers."""
    refuse_little_address_space()
    from outsize.commands import elsewhere as command

    command.pack(
        job,
        overrides=set_ or (),
        ranks=(nodes, gpus),
        gpu=gpu,
        minutes=minutes,
        out=out,
        reporter=make_reporter(quiet),
        data=data,
        overwrite=overwrite,
    )


def unpack(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="What `outsize pack` wrote.", readable=False)],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Default: the name of the job.", readable=False),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            "--data-root", metavar="FOLDER", help="Where the data is here; it is checked.", readable=False
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Check a packed job and leave it in a folder, where it goes on."""
    from outsize.commands import elsewhere as command

    command.unpack(pack, to=to, data_root=data_root, reporter=make_reporter(quiet))
