"""The verbs with their options; rooms are loaded only when a verb runs, so help needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outsize.cli.across import Gpus, across
from outsize.cli.bench import bench
from outsize.cli.data import acquire, check, init, prepare
from outsize.cli.elsewhere import launch, pack, unpack
from outsize.cli.options import (
    Aoi,
    Device,
    JobPath,
    LocalNorm,
    Overrides,
    Overwrite,
    Quiet,
    RunPath,
    Shard,
    Spread,
    Stages,
    TakeOver,
    Verbs,
    make_reporter,
)
from outsize.cli.results import compare, evaluate, info, report, verify
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


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from outsize import __version__

        typer.echo(f"outsize {__version__}")
        raise typer.Exit


def doctor(quiet: Quiet = False) -> None:
    """Show what this machine has: torch build, driver, GDAL, memory."""
    from outsize.commands import doctor as command

    command.doctor(make_reporter(quiet))


def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder to fill.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw synthetic scenes, then check, plan, train, predict, evaluate, verify and report."""
    from outsize.commands import demo as command

    command.demo(out, device_name=device, reporter=make_reporter(quiet), overwrite=overwrite)


def plan(
    job: JobPath,
    set_: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Plan for another machine than this one, such as v100-16.")
    ] = None,
    *,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs share a batch.")] = 1,
    local_norm: LocalNorm = False,
    spread: Spread = "auto",
    stages: Stages = None,
    shard: Shard = False,
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
        spread=spread,
        stages=stages,
        shard=shard,
    )


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
    spread: Spread = "auto",
    stages: Stages = None,
    shard: Shard = False,
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
        spread=spread,
        stages=stages,
        shard=shard,
    )


def tune(
    job: JobPath,
    set_: Overrides = None,
    *,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Of the study, with those it has.")] = 20,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Trials at once, each on a GPU in turn.")
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="URL", help="Database of the study; default: a journal in the run."
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Try what the job says may vary, and find which of it does best; repeated, it goes on."""
    refuse_little_address_space()
    from outsize.commands import tune as command

    command.tune(
        job,
        overrides=set_ or (),
        num_trials=trials,
        num_workers=workers,
        storage=storage,
        device_name=device,
        reporter=make_reporter(quiet),
    )


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
    """Predict whole scenes: a map (COG), its confidence, polygons; or objects, boxes, or the class of each picture."""
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


def run(
    workflow: Annotated[
        Path, typer.Argument(metavar="WORKFLOW", help="Workflow file or job file (TOML).", readable=False)
    ],
    force: Annotated[
        list[str] | None,
        typer.Option("--force", metavar="STAGE", help="Run it even where nothing has changed."),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and why.")] = False,
    snakemake: Annotated[
        Path | None,
        typer.Option("--snakemake", metavar="FILE", help="Write it as a Snakefile instead.", readable=False),
    ] = None,
    take_over: TakeOver = False,
    quiet: Quiet = False,
) -> None:
    """Run the verbs of jobs, from raw files to a report: what is missing, or has changed."""
    from outsize.commands import workflow as command

    reporter = make_reporter(quiet)
    command.run(
        workflow, forced=force or (), dry=dry, snakemake=snakemake, reporter=reporter, take_over=take_over
    )


# in the order in which help lists them: that of the work
_IN_ORDER: tuple[Callable[..., None], ...] = (
    doctor,
    demo,
    init,
    acquire,
    prepare,
    check,
    plan,
    train,
    tune,
    launch,
    pack,
    unpack,
    predict,
    run,
)
_READING: tuple[Callable[..., None], ...] = (evaluate, verify, report, info, compare)
for verb in (*_IN_ORDER, *_READING):
    app.command()(verb)
