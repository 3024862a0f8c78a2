"""`outsize bench`: what is measured, as verbs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outsize.bench import ROUNDS
from outsize.cli.options import Device, JobPath, Overrides, Quiet, Verbs, make_reporter
from outsize.measure.address import refuse_little_address_space

bench = typer.Typer(
    cls=Verbs, help="Run a job in several ways and measure them side by side.", no_args_is_help=True
)


Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder to write bench/ in; default: the run's.", readable=False),
]


@bench.command()
def memory(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets",
            metavar="LIMITS",
            help="Shares of the activation memory of a plain step: 0.5,0.33; or caps: 16GiB,70%.",
        ),
    ] = None,
    ways: Annotated[
        str | None,
        typer.Option("--ways", metavar="NAMES", help="Ways to measure: checkpoint,ours; default: all."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each way is measured.")] = ROUNDS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure peak memory and step time: ours within budgets, and every other way."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.memory(
        job,
        overrides=set_ or (),
        device_name=device,
        out=out,
        budgets=budgets,
        ways=ways,
        rounds=rounds,
        reporter=make_reporter(quiet),
    )


@bench.command()
def batch(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    batches: Annotated[
        str | None,
        typer.Option("--batches", metavar="NUMBERS", help="1,2,4; default: doubled until out of memory."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each batch is measured.")] = 5,
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="No more rounds after that.")] = 1.5,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure batches up to out of memory: time per sample, GPU use, memory."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.batch(
        job,
        overrides=set_ or (),
        device_name=device,
        out=out,
        batches=batches,
        rounds=rounds,
        minutes=minutes,
        reporter=make_reporter(quiet),
    )


@bench.command()
def fit(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    *,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="PIXELS", help="Windows: 512,800; default: the job's and twice it."),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option("--batches", metavar="NUMBERS", help="8,16; default: the job's, twice, four times."),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option("--budgets", metavar="SIZES", help="Memory: 8GiB,16GiB; default: what is there."),
    ] = None,
    machines: Annotated[
        str | None, typer.Option("--machines", metavar="NAMES", help="here,v100-16,ac922; default: here.")
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.0, help="Nothing more is measured after; 0: predict alone.")
    ] = 1.5,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Say what fits: sizes, batches, budgets and machines, by what way and at what cost."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.fit(
        job,
        overrides=set_ or (),
        device_name=device,
        out=out,
        asked={"sizes": sizes, "batches": batches, "budgets": budgets, "machines": machines},
        minutes=minutes,
        reporter=make_reporter(quiet),
    )


@bench.command()
def profile(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Steps that are timed.")] = 12,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Take a step apart: waiting, copies, compute, stalls, gaps; a trace, and what would help."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.profile(
        job, overrides=set_ or (), device_name=device, out=out, steps=steps, reporter=make_reporter(quiet)
    )


@bench.command()
def scaling(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="NUMBERS", help="Ranks on this machine, one for each GPU: 1,2,4.")
    ] = "1,2",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each way is measured.")] = 10,
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="No more rounds after that.")] = 1.5,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure one rank against several: throughput, efficiency, and where time is lost."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.scaling(
        job,
        overrides=set_ or (),
        device_name=device,
        out=out,
        num_ranks=gpus,
        rounds=rounds,
        minutes=minutes,
        reporter=make_reporter(quiet),
    )


@bench.command()
def share(
    job: JobPath,
    set_: Overrides = None,
    out: Out = None,
    processes: Annotated[
        int, typer.Option("--processes", "-n", min=1, help="How many share the device, each a part.")
    ] = 2,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each way is measured.")] = 8,
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="No more rounds after that.")] = 1.5,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure several processes on one GPU, each within its share of memory, and one alone."""
    refuse_little_address_space()
    from outsize.commands import bench as command

    command.share(
        job,
        overrides=set_ or (),
        device_name=device,
        out=out,
        num=processes,
        rounds=rounds,
        minutes=minutes,
        reporter=make_reporter(quiet),
    )
