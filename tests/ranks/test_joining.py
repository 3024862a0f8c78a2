"""Processes that find each other, and what is said where one does not come or is of another job."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from tests.ranks.started import free_port, rank_of, run

from outsize import stopping
from outsize.errors import RanksError
from outsize.ranks import ALONE, World
from outsize.ranks.joining import joined, world_of


def _join() -> None:
    try:
        with joined({"job": os.environ["JOB"]}) as world:
            print("sum", world.sum({"": world.rank + 1.0})[""])
    except RanksError as error:
        print(error)


def _run(folder: Path, *ranks: Mapping[str, str]) -> list[str]:
    return run(folder, *ranks, work=_join)


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, ALONE),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, ALONE),
        ({"SLURM_NTASKS": "4"}, ALONE),  # within sbatch, but not started by srun
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            World(3, 4, 1, 2),
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"},
            World(0, 2, 0, 2, attempt=1),
        ),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_NTASKS": "5",
                "SLURM_PROCID": "4",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
            },
            World(4, 5, 0, 2),
        ),
    ],
)
def test_the_environment_says_which_rank_this_is(environ: dict[str, str], world: World) -> None:
    assert world_of(environ) == world


def test_a_rank_beyond_the_others_is_refused() -> None:
    with pytest.raises(RanksError, match="RANK=4, WORLD_SIZE=4"):
        world_of({"RANK": "4", "WORLD_SIZE": "4"})


def test_a_process_that_nobody_started_so_is_alone() -> None:
    with joined(environ={}) as world:
        assert world is ALONE


def test_two_ranks_meet(tmp_path: Path) -> None:
    port = free_port()
    assert _run(tmp_path, rank_of(0, 2, port), rank_of(1, 2, port)) == ["sum 3.0\n"] * 2


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    [told] = _run(tmp_path, rank_of(0, 3, free_port(), OUTSIZE_WAIT_S="1"))
    assert told.startswith("ranks 1, 2 did not come: found 1 of 3 after 1 s, needed all ranks; look")
    assert told.count("\n") == 1


def test_a_rank_alone_says_whom_it_cannot_reach(tmp_path: Path) -> None:
    port = free_port()
    [told] = _run(tmp_path, rank_of(1, 2, port, OUTSIZE_WAIT_S="1"))
    assert f"rank 1 cannot reach 127.0.0.1:{port}" in told.splitlines()[-1]


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [told] = _run(tmp_path, rank_of(0, 2, port))
    assert f"cannot listen on 127.0.0.1:{port}" in told.splitlines()[-1]
    assert "set MASTER_PORT" in told


def test_ranks_of_other_jobs_are_told_apart(tmp_path: Path) -> None:
    port = free_port()
    first, second = _run(tmp_path, rank_of(0, 2, port), rank_of(1, 2, port, JOB="b"))
    assert first.startswith("rank 1 has another job: found 'b', needed 'a' as rank 0 has it; start")
    assert second.startswith("rank 0 has another job: found 'a', needed 'b' as rank 1 has it; start")


def _refuse_late() -> None:
    try:
        with joined() as world:
            world.barrier()
            importlib.import_module("torch.distributed.nn.functional")  # as some of torch does by itself
            world.owners(_refuse)
    except RanksError as error:
        print(error)


def _refuse() -> None:
    raise RanksError("too small")


def test_a_refusal_of_one_is_told_by_that_one_alone(tmp_path: Path) -> None:
    port = free_port()
    first, *others = run(tmp_path, *(rank_of(rank, 3, port) for rank in range(3)), work=_refuse_late)
    assert first == "too small\n"
    assert others == ["another rank has reported why it ended\n"] * 2


def _die() -> None:
    try:
        with joined() as world:
            world.at("epoch 3")
            while True:
                if world.sum({"": 1.0})[""] and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    except RanksError as error:
        print(error)


def test_a_rank_that_dies_is_named_with_its_phase(tmp_path: Path) -> None:
    port = free_port()
    first, _, third = run(tmp_path, *(rank_of(rank, 3, port) for rank in range(3)), work=_die)
    for told in (first, third):
        [line] = [each for each in told.splitlines() if "lost" in each]
        assert line.startswith("another rank was lost: found rank 1 in epoch 3 ("), line


def _die_and_be_asked_to_end() -> None:
    with suppress(stopping.Stopped), stopping.listening():
        try:
            with joined() as world, stopping.held():
                world.at("epoch 3")
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
                while True:
                    if world.sum({"": 1.0})[""] and world.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
        except RanksError as error:
            print(error)


def test_ranks_that_their_launcher_ends_meanwhile_name_the_one_that_died(tmp_path: Path) -> None:
    port = free_port()
    first, _ = run(tmp_path, *(rank_of(rank, 2, port) for rank in range(2)), work=_die_and_be_asked_to_end)
    assert "another rank was lost: found rank 1 in epoch 3 (" in first
