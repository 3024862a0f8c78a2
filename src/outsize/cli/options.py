"""Arguments and options that verbs share, and how their help shows them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outsize.progress import Reporter


class Verbs(TyperGroup):
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
LocalNorm = Annotated[
    bool,
    typer.Option("--local-norm", help="Of several GPUs each norms by its own samples: faster, approximate."),
]
Spread = Annotated[
    str,
    typer.Option(
        "--spread",
        metavar="WAY",
        help="How pictures lie on several GPUs: whole, exchange (parts, borders sent), recompute (parts with halos).",
    ),
]
Shard = Annotated[
    bool,
    typer.Option("--shard", help="Each GPU keeps the optimizer's state of some weights; auto where it must."),
]
Stages = Annotated[
    int | None,
    typer.Option(
        "--stages",
        min=1,
        help="Cut the model into stages, one for each GPU; more GPUs make replicas of that.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def make_reporter(quiet: bool) -> Reporter:
    """Return where a verb's progress goes: a bar in a terminal, JSON lines elsewhere."""
    if quiet:
        return Reporter("quiet")
    return Reporter("bar" if sys.stdout.isatty() else "json")
