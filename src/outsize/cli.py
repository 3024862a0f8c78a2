"""Arguments and help of every verb; rooms are loaded only when a verb runs, so help needs no torch."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outsize.bench import ROUNDS
from outsize.commands.memory_line import host_shortage
from outsize.errors import OutsizeError
from outsize.files.refused import refused_name
from outsize.measure.address import refuse_little_address_space
from outsize.progress import Reporter
from outsize.stopping import Stopped, listening


class _Verbs(TyperGroup):
    """Verbs whose flags are shown without a value in the help, because they take none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what the group itself takes."""
        return _without_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_values(command.get_params(ctx))
        return command


def _without_values(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


app = typer.Typer(
    cls=_Verbs,
    help="Train, run and measure vision models on images, batches and models that outsize one GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# readable=False: whatever opens a path says in one line why it cannot be read
JobPath = Annotated[Path, typer.Argument(metavar="JOB", help="Job file (TOML).", readable=False)]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", readable=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a job key: train.lr=0.01.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Aoi = Annotated[
    Path | None,
    typer.Option(
        "--aoi",
        metavar="FILE",
        help="Area of interest: polygons in any coordinate system; only pixels inside count.",
        readable=False,
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Take over a lock that a finished process left on another host.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Write over files that outsize did not make, too.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


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

    command.doctor(_reporter(quiet))


@app.command()
def info(run: RunPath, quiet: Quiet = False) -> None:
    """Show what a run is and how far it got."""
    from outsize.commands import info as command

    command.info(run, _reporter(quiet))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder to fill.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw synthetic scenes, then check, plan, train, predict, evaluate, verify and report."""
    from outsize.commands import demo as command

    command.demo(out, device_name=device, reporter=_reporter(quiet), overwrite=overwrite)


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

    command.init(folder, out=out, overwrite=overwrite, reporter=_reporter(quiet), objects=objects)


@app.command()
def check(job: JobPath, set_: Overrides = None, quiet: Quiet = False) -> None:
    """Read all data once and say what is wrong with it."""
    from outsize.commands import check as command

    command.check(job, overrides=set_ or (), reporter=_reporter(quiet))


@app.command()
def plan(
    job: JobPath,
    set_: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Plan for another machine than this one, such as v100-16.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs share a batch.")] = 1,
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
        reporter=_reporter(quiet),
        gpu=gpu,
        num_gpus=gpus,
        request=request,
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
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train as the job says."""
    refuse_little_address_space()
    from outsize.commands import train as command

    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other")
    mode = "resume" if resume else "overwrite" if overwrite else "new"
    command.train(
        job,
        overrides=set_ or (),
        device_name=device,
        mode=mode,
        reporter=_reporter(quiet),
        take_over=take_over,
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
    quiet: Quiet = False,
) -> None:
    """Predict whole scenes: a map (COG), its confidence, polygons; or the objects in them."""
    refuse_little_address_space()
    from outsize.commands import predict as command
    from outsize.files.ownership import Consent

    shorter = [] if halo is None else [f"limits.halo_px={halo}", "limits.allow_approximate=true"]
    overrides = [*shorter, *(set_ or ())]
    reporter = _reporter(quiet)
    if split is not None:
        images = command.images_of(run, split, [*map(str, images or ()), *(bands or ())])
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
    )


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
    from outsize.commands import compare, evaluate

    if other is None:
        evaluate.evaluate(run, split=split, reporter=_reporter(quiet), aoi=aoi)
    else:
        compare.compare((run, other), split=split, reporter=_reporter(quiet), aoi=aoi)


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

    command.report(runs, out=out, reporter=_reporter(quiet), overwrite=overwrite)


@app.command()
def verify(run: RunPath, set_: Overrides = None, device: Device = "auto", quiet: Quiet = False) -> None:
    """Prove on the run's own model that tiling and the plan did not change the answer."""
    refuse_little_address_space()
    from outsize.commands import verify as command

    command.verify(run, overrides=set_ or (), device_name=device, reporter=_reporter(quiet))


bench = typer.Typer(
    cls=_Verbs, help="Run a job in several ways and measure them side by side.", no_args_is_help=True
)
app.add_typer(bench, name="bench")


@bench.command()
def memory(
    job: JobPath,
    set_: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write bench/ in; default: the run's.", readable=False),
    ] = None,
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
        reporter=_reporter(quiet),
    )


def _reporter(quiet: bool) -> Reporter:
    if quiet:
        return Reporter("quiet")
    return Reporter("bar" if sys.stdout.isatty() else "json")


def _let_memory_grow() -> None:
    """Set torch's allocator to expandable segments, unless the user has configured it.

    Its default is to keep blocks of the sizes that were asked for. Within a tight limit, where tensors are freed in
    another order than they were made, a tenth of the memory was lost to fragmentation, and steps that fit failed.
    """
    if not any(f"PYTORCH_{kind}ALLOC_CONF" in os.environ for kind in ("", "CUDA_", "HIP_")):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _let_gdal_be_silent() -> None:
    """Keep GDAL from printing, unless the user has said where to: errors are reported in a line of our own."""
    os.environ.setdefault("CPL_LOG", os.devnull)


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    # Pillow warns of large pictures; outsize refuses what is too large by an error of its own
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit", module="PIL.Image")
    _let_memory_grow()
    _let_gdal_be_silent()
    try:
        with listening():
            app()
    except (OutsizeError, MemoryError, OSError, RuntimeError, ImportError, SystemError) as error:
        shown = host_shortage(error) or refused_name(error) or error
        if not isinstance(shown, OutsizeError):
            raise
        sys.stderr.write(f"outsize: {shown}\n")
        sys.exit(shown.exit_code)
    except Stopped as stopped:
        sys.stderr.write(f"outsize: {_said_of(stopped, sys.argv[1:])}\n")
        sys.exit(stopped.exit_code)


def _said_of(stopped: Stopped, words: list[str]) -> str:
    """Say what a stopped verb saved, and the command that continues or starts again."""
    if stopped.is_saved:
        words = [each for each in words if each not in ("--overwrite", "--resume")] + ["--resume"]
    then = "to continue" if stopped.kept else "to start again"
    return f"stopped by {stopped}, {stopped.kept or 'nothing to save'}; {then}: {shlex.join(['outsize', *words])}"
