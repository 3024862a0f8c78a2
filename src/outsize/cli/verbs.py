"""The verbs with their options; rooms are loaded only when a verb runs, so help needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outsize.cli.across import Gpus, across
from outsize.cli.bench import bench, compare
from outsize.cli.options import (
    Aoi,
    Device,
    JobPath,
    LocalNorm,
    Overrides,
    Overwrite,
    Quiet,
    RunPath,
    TakeOver,
    Verbs,
    make_reporter,
)
from outsize.measure.address import refuse_little_address_space

if TYPE_CHECKING:
    from outsize.progress import Reporter
    from outsize.ranks import World

app = typer.Typer(
    cls=Verbs,
    help="Train, run and measure vision models on images, batches and models that outsize one GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench")
app.command()(compare)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from outsize import __version__

        typer.echo(f"outsize {__version__}")
        raise typer.Exit


@app.command()
def doctor(quiet: Quiet = False) -> None:
    """Show what this machine has: torch build, driver, GDAL, memory."""
    from outsize.commands import doctor as command

    command.doctor(make_reporter(quiet))


@app.command()
def info(run: RunPath, quiet: Quiet = False) -> None:
    """Show what a run is and how far it got."""
    from outsize.commands import info as command

    command.info(run, make_reporter(quiet))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder to fill.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw synthetic scenes, then check, plan, train, predict, evaluate, verify and report."""
    from outsize.commands import demo as command

    command.demo(out, device_name=device, reporter=make_reporter(quiet), overwrite=overwrite)


@app.command()
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
    from outsize.commands import init as command

    command.init(folder, out=out, overwrite=overwrite, reporter=make_reporter(quiet), objects=objects)


@app.command()
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
    take_over: TakeOver = False,
    quiet: Quiet = False,
) -> None:
    """Fetch the files of a list; repeated, what is missing of them."""
    from outsize.commands import acquire as command

    asked = {"parallel": parallel, "rate_per_s": rate, "tries": tries}
    changes: dict[str, object] = {key: value for key, value in asked.items() if value is not None}
    command.acquire(source, to=to, changes=changes, reporter=make_reporter(quiet), take_over=take_over)


@app.command()
def check(job: JobPath, set_: Overrides = None, quiet: Quiet = False) -> None:
    """Read all data once and say what is wrong with it."""
    from outsize.commands import check as command

    command.check(job, overrides=set_ or (), reporter=make_reporter(quiet))


@app.command()
def plan(
    job: JobPath,
    set_: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Plan for another machine than this one, such as v100-16.")
    ] = None,
    *,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs share a batch.")] = 1,
    local_norm: LocalNorm = False,
    link: Annotated[
        str | None,
        typer.Option("--link", help="What connects them: plan tiles x stages x replicas, play an epoch out."),
    ] = None,
    request: Annotated[
        bool, typer.Option("--request", help="Print what to ask a cluster or cloud for.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Say what fits the memory limit, how, how long it takes, and why."""
    refuse_little_address_space()
    from outsize.commands import plan as command

    command.plan(
        job,
        overrides=set_ or (),
        device_name=device,
        reporter=make_reporter(quiet),
        gpu=gpu,
        num_gpus=gpus,
        link=link,
        request=request,
        local_norm=local_norm,
    )


@app.command()
def train(
    job: JobPath,
    set_: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where an interrupted training stopped.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in a used folder.")] = False,
    take_over: TakeOver = False,
    *,
    gpus: Gpus = None,
    local_norm: LocalNorm = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train as the job says."""
    refuse_little_address_space()
    from outsize.commands import train as command

    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other")
    mode = "resume" if resume else "overwrite" if overwrite else "new"
    command.train_over_ranks(
        job,
        overrides=set_ or (),
        device_name=device,
        mode=mode,
        reporter=make_reporter(quiet),
        num_ranks=gpus,
        take_over=take_over,
        local_norm=local_norm,
    )


@app.command()
def launch(
    job: JobPath,
    set_: Overrides = None,
    *,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write a script for Slurm.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Ranks on each machine, one for each GPU.")] = 1,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU of those machines, such as v100-16; default: as here.")
    ] = None,
    minutes: Annotated[
        int | None, typer.Option("--minutes", min=1, help="Time limit; default: what the plan asks for.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Script to write; default: JOB.slurm.sh.", readable=False),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit/--dry-run", help="Submit it, or write it only.")] = True,
    quiet: Quiet = False,
) -> None:
    """Write a script that trains the job on several machines, and submit it."""
    refuse_little_address_space()
    from outsize.commands import launch as command

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


@app.command()
def predict(
    run: RunPath,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[IMAGES...]", help="Scenes; default: the run's test scenes.", readable=False),
    ] = None,
    *,
    split: Annotated[
        str | None, typer.Option("--split", help="Predict the run's own scenes: test, val or train.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the maps; default: RUN/predictions.", readable=False),
    ] = None,
    halo: Annotated[
        int | None,
        typer.Option(
            "--halo", metavar="PX", help="Shorter halo: faster, approximate; the difference is measured."
        ),
    ] = None,
    bands: Annotated[
        list[str] | None,
        typer.Option(
            "--bands", metavar="FILE,FILE,...", help="A scene of one file per band, in the model's order."
        ),
    ] = None,
    aoi: Aoi = None,
    set_: Overrides = None,
    overwrite: Overwrite = False,
    take_over: TakeOver = False,
    device: Device = "auto",
    gpus: Gpus = None,
    quiet: Quiet = False,
) -> None:
    """Predict whole scenes: a map (COG), its confidence, polygons; or objects; or the class of each picture."""
    refuse_little_address_space()
    from outsize.commands import predict as command
    from outsize.files.ownership import Consent

    shorter = [] if halo is None else [f"limits.halo_px={halo}", "limits.allow_approximate=true"]
    overrides = [*shorter, *(set_ or ())]
    if split is not None:
        images = command.images_of(run, split, [*map(str, images or ()), *(bands or ())])

    def work(world: World | None, reporter: Reporter) -> None:
        command.predict(
            run,
            images or [],
            out=out,
            overrides=overrides,
            device_name=device,
            reporter=reporter,
            aoi=aoi,
            stacks=bands or (),
            consent=Consent(overwrite, take_over),
            world=world,
        )

    across(gpus, device, quiet, work)


@app.command()
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
    from outsize.commands import evaluate

    if other is None:
        evaluate.evaluate(run, split=split, reporter=make_reporter(quiet), aoi=aoi)
    else:
        evaluate.compare((run, other), split=split, reporter=make_reporter(quiet), aoi=aoi)


@app.command()
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
    from outsize.commands import report as command

    command.report(runs, out=out, reporter=make_reporter(quiet), overwrite=overwrite)


@app.command()
def verify(run: RunPath, set_: Overrides = None, device: Device = "auto", quiet: Quiet = False) -> None:
    """Prove on the run's own model that tiling and the plan did not change the answer."""
    refuse_little_address_space()
    from outsize.commands import verify as command

    command.verify(run, overrides=set_ or (), device_name=device, reporter=make_reporter(quiet))
