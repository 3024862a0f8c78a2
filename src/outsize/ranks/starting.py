"""Has a verb done by several ranks: starts them on this machine, and says on which device each of them works.

outsize VERB --gpus 4 --> spread --> the same words on 4 ranks --> spread: these are the ranks --> joined
torchrun ... outsize VERB -----------------------------------------^
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from outsize.errors import RanksError, ReportedElsewhere, explain
from outsize.ranks.joining import world_of
from outsize.ranks.launch import launch
from outsize.ranks.world import World


def spread(
    num_ranks: int | None,
    device_name: str,
    *,
    say: Callable[[str], None],
    again: Callable[[Sequence[str]], Sequence[str]] = tuple,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Run this process's command line on so many ranks and return True; False: this process is to do it itself.

    That is so within torchrun or srun, which have started the ranks, and where one rank is enough. What ends with an
    error has told why: it is raised as reported elsewhere. `again` makes the words of a second attempt after a kill.
    """
    world = world_of(environ)
    if not world.is_alone:
        if num_ranks not in (None, world.size, world.local_size):
            need = f"{world.size}, or nothing: the ranks have been started"
            raise RanksError(explain("--gpus does not fit", num_ranks, need, "leave --gpus out"))
        return False
    if num_ranks is None or num_ranks == 1:
        return False
    _refuse_missing_gpus(num_ranks, device_name, say)
    code = launch(["-m", "outsize", *sys.argv[1:]], num_ranks, again=again, say=say)
    if code:
        raise ReportedElsewhere(code)
    return True


def own_device(world: World, device_name: str) -> str:
    """Return the device that a rank works on: of several GPUs each takes its own; without any, all take the CPU."""
    import torch

    kind, _, number = device_name.partition(":")
    if world.is_alone or kind not in ("auto", "cuda") or number or not torch.cuda.is_available():
        return device_name
    return f"cuda:{world.local_rank % torch.cuda.device_count()}"


def _refuse_missing_gpus(num_ranks: int, device_name: str, say: Callable[[str], None]) -> None:
    """Refuse more ranks than GPUs; where there is none, or none is wanted, say what is done instead."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = device_name.partition(":")
    if kind == "cpu" or (kind == "auto" and not num_gpus):
        say(f"no GPU: {num_ranks} processes on the CPU, which meet by gloo")
        return
    if number:
        need, remedy = "a GPU for each rank", "leave --device out"
        raise RanksError(explain(f"--gpus {num_ranks} with one device", device_name, need, remedy))
    if num_ranks > num_gpus:
        need, remedy = (
            f"{num_ranks}, one for each rank",
            f"ask for --gpus {num_gpus or 1}, or add --device cpu",
        )
        raise RanksError(
            explain(f"--gpus {num_ranks} is more than there is", f"{num_gpus} GPUs", need, remedy)
        )
