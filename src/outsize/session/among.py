"""A training among ranks: what must be the same on all of them, and what each may take of its machine.

rank 0   lay, check, plan, read labels --.                              saves, scores, logs, says
rank 1   waits --------------------------+--> prepared: the same model,  makes its samples of each batch,
rank 2   waits --------------------------'    plan and samples on all    and steps with all others
"""

from __future__ import annotations

import hashlib
import platform
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.data.feeding import num_cores
from outsize.errors import RanksError, explain, listed
from outsize.job import Job
from outsize.plan.links import measured_link
from outsize.planning.situation import Ranks, Sharing, share_of
from outsize.progress import Reporter
from outsize.ranks import World
from outsize.runs import output_errors
from outsize.units import format_count

if TYPE_CHECKING:
    import torch
    from torch import nn

_SEEN_S = 20.0  # after which a file of another machine is seen where a folder is shared: such systems keep old lists


def alike(job_path: Path, overrides: Sequence[str]) -> dict[str, str]:
    """Return what all ranks of a training must have the same: they compare it when they meet."""
    import torch

    import outsize

    try:
        text = job_path.read_bytes()
    except OSError:
        text = b""  # which the owner says
    digest = hashlib.sha256(b"\0".join((text, *(each.encode() for each in overrides)))).hexdigest()[:12]
    return {
        "job": digest,
        "version of outsize": outsize.__version__,
        "version of torch": str(torch.__version__),
    }


def ranks_of(world: World, device: torch.device, sharing: Sharing) -> Ranks:
    """Return how many train together, and the least that any of them has."""
    import torch

    from outsize.measure.machine import look_at_machine

    if world.is_alone:
        return Ranks(sharing=sharing)
    machines = world.gather(look_at_machine(device))
    kinds = {each.device.partition(":")[0] for each in machines}
    if len(kinds) > 1:
        found, need = " and ".join(sorted(kinds)), "the same on all"
        raise RanksError(explain("ranks compute on different devices", found, need, "set --device"))
    on_one = -(-world.local_size // torch.cuda.device_count()) if device.type == "cuda" else 1
    least = min(machines, key=lambda each: (each.free_bytes, each.host_free_bytes))
    latency_s, bytes_per_s = world.speed(device)
    return Ranks(world.size, world.local_size, on_one, sharing, least, measured_link(latency_s, bytes_per_s))


def say_ranks(job: Job, ranks: Ranks, device: str, reporter: Reporter) -> None:
    """Say how ranks share a batch."""
    batch = job.train.batch
    num_stages = ranks.sharing.stages or 1
    num = max(1, ranks.num // num_stages)
    share = share_of(batch, num)
    kind = "GPUs" if device == "cuda" else "processes on the CPU"
    most, waits = ("at most ", ": those with fewer wait for the others") if batch % num else ("", "")
    text = f"{ranks.num} ranks ({kind}): {most}{share} of {batch} samples of a step on each{waits}"
    if num_stages > 1:
        text = f"{ranks.num} ranks ({kind}): {format_count(num, 'pipeline')} of {num_stages} stages, "
        text += f"{most}{share} of {batch} samples of a step through each{waits}"
    if device == "cpu" and ranks.num_local > num_cores():
        text += f"; warning: they take turns on {format_count(num_cores(), 'core')}"
    if num > batch:
        text = f"{ranks.num} ranks ({kind}) for {batch} samples of a step: several share each picture"
    if ranks.sharing.local_norm:
        text += "; batch norm by each rank's own samples (--local-norm), which is approximate"
    reporter.say("ranks", text, num_ranks=ranks.num, batch=batch, most_samples=share)


def refuse_apart(world: World, folder: Path) -> None:
    """Refuse ranks whose run folder is another one: what the owner saves there they could not go on from."""
    if world.is_alone:
        return
    mark = world.owners(lambda: folder / f".ranks-{uuid.uuid4().hex}")
    if world.is_owner:
        with output_errors(mark):
            mark.touch()
    world.barrier()
    until_s = time.monotonic() + _SEEN_S
    while not (seen := mark.exists()) and time.monotonic() < until_s:
        time.sleep(0.1)
    views = world.gather((seen, platform.node()))
    if world.is_owner:
        mark.unlink(missing_ok=True)
    blind = [f"rank {rank} on {host}" for rank, (sees, host) in enumerate(views) if not sees]
    if blind:
        found = f"{listed(blind)} does not see what rank 0 on {views[0][1]} wrote there"
        remedy = "put the run on a disk that all machines share (--set run=...), and start all in one folder"
        raise RanksError(explain(f"run {folder} is not shared", found, "one folder for all ranks", remedy))


def evened(model: nn.Module, world: World) -> None:
    """Give all ranks the means of what their norms have seen apart, so that one speaks for all."""
    if world.is_alone:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            world.add_up(buffer).div_(world.size)
