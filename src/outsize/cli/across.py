"""Does a verb in this process, or on ranks: those of `--gpus`, of torchrun, of srun."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from outsize.cli.options import make_reporter
from outsize.progress import Reporter

if TYPE_CHECKING:
    from outsize.ranks import World

Gpus = Annotated[
    int | None,
    typer.Option("--gpus", min=1, help="Ranks on this machine, one for each GPU; without any, on its CPU."),
]


def across(
    gpus: int | None,
    device: str,
    quiet: bool,
    work: Callable[[World | None, Reporter], object],
    *,
    same: Mapping[str, str] | None = None,
    again: Callable[[Sequence[str]], Sequence[str]] = tuple,
) -> None:
    """Call `work` with the world and a reporter on each rank, or once without a world; `same` is so on all ranks."""
    if gpus in (None, 1) and not {"RANK", "SLURM_STEP_ID"} & os.environ.keys():
        work(None, make_reporter(quiet))
        return
    import torch

    from outsize import __version__
    from outsize.ranks import joined, spread

    reporter = make_reporter(quiet)
    if spread(gpus, device, say=lambda text: reporter.say("ranks", text), again=again):
        return
    versions = {"outsize": __version__, "torch": torch.__version__}
    words = {"command line": shlex.join(sys.argv[1:])}
    with joined({**versions, **words, **(same or {})}) as world:
        work(world, make_reporter(quiet or not world.is_owner))
