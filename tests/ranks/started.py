"""Processes that are started as torchrun would start them, each with its rank in its environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.remembered import remembering


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_of(number: int, size: int, port: int, **more: str) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {
        "RANK": str(number),
        "WORLD_SIZE": str(size),
        "JOB": "a",
        "OUTSIZE_WAIT_S": "120",
        **where,
        **more,
    }


def start(folder: Path, *ranks: Mapping[str, str], work: Callable[[], None]) -> list[BaseProcess]:
    """Start a process for each rank's environment; what it prints goes to a file of its number."""
    context = get_context("forkserver")
    started: list[BaseProcess] = [
        context.Process(target=_as_rank, args=(environ, folder / f"{number}.txt", work))
        for number, environ in enumerate(ranks)
    ]
    for process in started:
        process.start()
    return started


def run(folder: Path, *ranks: Mapping[str, str], work: Callable[[], None]) -> list[str]:
    """Start a process for each rank's environment and return what each prints."""
    for process in start(folder, *ranks, work=work):
        process.join()
    return [(folder / f"{number}.txt").read_text() for number in range(len(ranks))]


def _as_rank(environ: Mapping[str, str], out: Path, work: Callable[[], None]) -> None:
    os.environ.update(environ)
    with out.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with remembering():
        work()
