"""Joins the processes that torchrun or srun has started for one job; a process that nobody started so is alone.

        rank 0 .. n-1          one store for all              a process group
    hello/0 ... hello/n-1  ->  who is missing is named    ->  collectives of this attempt

A restarted job meets under the number of its attempt: under the same keys it would find the addresses of processes
that are dead.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from outsize.errors import OutsizeError, RanksError, ReportedElsewhere, explain, listed
from outsize.ranks.launch import ENDS_WITH_LAUNCHER
from outsize.ranks.meeting import Meeting, is_of_ranks
from outsize.ranks.pulse import LOST_ANOTHER, PHASES, Pulse, lost
from outsize.ranks.world import ALONE, World
from outsize.stopping import Stopped, end_with_parent, held

WAIT_S = 120.0  # for all ranks to come; a cluster may start them minutes apart, and says so by OUTSIZE_WAIT_S
_LOOK_S = 0.02  # between two looks at the store
_COMPARE_S = 30.0  # for all, which are there, to read what the others are


@contextmanager
def joined(
    fingerprint: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[World]:
    """Give the world that this process is part of; `fingerprint` says what must be the same in all of it."""
    world = world_of(environ)
    if world.is_alone:
        yield world
        return
    if environ.get(ENDS_WITH_LAUNCHER):
        end_with_parent()
    wait_s = _seconds(environ)
    store = _meet(world, environ, wait_s)
    _refuse_missing(store, world, wait_s)
    _refuse_strangers(store, world, fingerprint or {})
    meeting = Meeting(store, world.rank, world.size, own_gpus=_has_own_gpus(world))
    pulse = Pulse(store, world.rank, world.size)
    exit_code = None
    try:
        yield replace(world, pulse=pulse, meeting=meeting)
    except RuntimeError as error:
        if not is_of_ranks(error):
            raise
        raise _why_left(meeting, pulse, error) from error
    except (OutsizeError, Stopped) as error:
        exit_code = error.exit_code
        # what all of them end by, the owner reports
        if not world.is_owner and (isinstance(error, Stopped) or meeting.owner_ends()):
            raise ReportedElsewhere(exit_code) from error
        raise
    finally:
        pulse.stop()
        meeting.close(exit_code)


def _why_left(meeting: Meeting, pulse: Pulse, error: RuntimeError) -> OutsizeError:
    """Return the error to end with where a collective failed: another rank has reported why, or was lost."""
    try:
        exit_code = meeting.exit_code()
    except RuntimeError:  # the store is gone
        exit_code = None
    if exit_code is None and PHASES in os.environ:
        exit_code = LOST_ANOTHER
    if exit_code is not None:
        return ReportedElsewhere(exit_code)
    found: OutsizeError = ReportedElsewhere(LOST_ANOTHER)
    with suppress(Stopped), held():  # who has started the ranks asks them to end meanwhile, which they do
        found = lost(pulse, error)
    return found


def world_of(environ: Mapping[str, str]) -> World:
    """Read from the environment which of how many processes this is."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    elif "SLURM_STEP_ID" in environ and int(environ.get("SLURM_NTASKS", "1")) > 1:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "OUTSIZE_LOCAL_SIZE", "SLURM_RESTART_COUNT")
    else:
        return ALONE
    rank, size, local_rank, local_size, attempt = (_number(environ, name) for name in names)
    if size is None or rank is None or size < 1 or not 0 <= rank < size:
        found = f"{names[0]}={environ.get(names[0])}, {names[1]}={environ.get(names[1])}"
        need, remedy = "a rank below the number of ranks", "start with torchrun or srun, which set both"
        raise RanksError(explain("ranks are not numbered", found, need, remedy))
    return World(rank, size, local_rank or 0, local_size or _tasks_here(environ), attempt or 0)


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Return how many tasks srun has started on this machine: the first number of `2(x3),1`."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    return int(
        "".join(letter for letter in tasks.partition("(")[0].partition(",")[0] if letter.isdigit()) or 1
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else None


def _seconds(environ: Mapping[str, str]) -> float:
    try:
        return float(environ.get("OUTSIZE_WAIT_S", WAIT_S))
    except ValueError as error:
        need, remedy = "seconds", "set a number, or leave it out"
        raise RanksError(explain("OUTSIZE_WAIT_S", environ["OUTSIZE_WAIT_S"], need, remedy)) from error


def _meet(world: World, environ: Mapping[str, str], wait_s: float) -> Store:
    """Return the store of this attempt, where all ranks of it meet."""
    host, port = _address(environ)
    # torchrun's agent has a store already; who listens else is rank 0
    listens = world.is_owner and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(host, port, world.size, listens, timedelta(seconds=wait_s), wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        if listens:
            found, need = str(error).partition("\n")[0], "a port that nobody listens on"
            remedy = "set MASTER_PORT to another one"
            raise RanksError(explain(f"cannot listen on {host}:{port}", found, need, remedy)) from error
        found, need = f"nobody there after {wait_s:.0f} s", "rank 0 of this job listening"
        remedy = "see whether it has started, and that MASTER_ADDR and MASTER_PORT are its own"
        raise RanksError(
            explain(f"rank {world.rank} cannot reach {host}:{port}", found, need, remedy)
        ) from error
    return PrefixStore(f"outsize/{world.attempt}", store)


def _address(environ: Mapping[str, str]) -> tuple[str, int]:
    if "MASTER_ADDR" in environ:
        port = _number(environ, "MASTER_PORT")
        if port is None:
            found, need = environ.get("MASTER_PORT", "none"), "a port for all ranks to meet at"
            raise RanksError(explain("MASTER_PORT is not set", found, need, "set it, such as 29500"))
        return environ["MASTER_ADDR"], port
    nodes = environ.get("SLURM_STEP_NODELIST", "localhost")
    if "[" in nodes:  # node[01-04]
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
        )
        nodes = shown.stdout
    # a port that all tasks of a step find by themselves, and those of another job do not
    port = (
        20000 + int(environ.get("SLURM_JOB_ID", "0")) * 7 % 20000 + int(environ.get("SLURM_STEP_ID", "0")) % 7
    )
    return nodes.split()[0].split(",")[0], port


def _refuse_missing(store: Store, world: World, wait_s: float) -> None:
    """Wait for every rank to say hello; who does not come is named."""
    store.set(f"hello/{world.rank}", f"{socket.gethostname()} {os.getpid()}")
    began_s = time.monotonic()
    missing = list(range(world.size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"hello/{rank}"])]
        waited_s = time.monotonic() - began_s
        if missing and waited_s > wait_s:
            come = f"{world.size - len(missing)} of {world.size} after {waited_s:.0f} s"
            who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {listed(missing)}"
            remedy = "look for its error on its machine; OUTSIZE_WAIT_S waits longer"
            raise RanksError(explain(f"{who} did not come", come, "all ranks", remedy))
        if missing:
            time.sleep(_LOOK_S)


def _refuse_strangers(store: Store, world: World, fingerprint: Mapping[str, str]) -> None:
    """Refuse ranks with another job, version or folder than this one: each compares itself, and all stop."""
    for name, mine in fingerprint.items():
        store.set(f"own/{world.rank}/{name}", mine)
    others = {
        (rank, name): store.get(f"own/{rank}/{name}").decode()
        for rank in range(world.size)
        for name in fingerprint
    }
    store.add("compared", 1)
    if world.is_owner:  # or the store would go before all have read it
        until_s = time.monotonic() + _COMPARE_S
        while store.add("compared", 0) < world.size and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
    for (rank, name), other in others.items():
        if other != fingerprint[name]:
            need = f"{fingerprint[name]!r} as rank {world.rank} has it"
            remedy = "start all ranks alike, from one folder"
            raise RanksError(explain(f"rank {rank} has another {name}", repr(other), need, remedy))


def _has_own_gpus(world: World) -> bool:
    """Whether each process of this machine has a GPU for itself: NCCL takes nothing less."""
    return torch.cuda.is_available() and torch.cuda.device_count() >= world.local_size
