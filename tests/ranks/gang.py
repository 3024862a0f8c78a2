"""A few processes that are started once and run functions of tests together, as ranks over gloo."""

from __future__ import annotations

import os
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from tests.remembered import remembering

from outsize.ranks import World
from outsize.ranks.meeting import Meeting

_LIMIT_S = 120  # of a function that hangs: no test waits forever
_MEET_S = 120  # gloo was seen to wait forever, once in a long row of groups that one store had served
_MET = "met"


class Gang:
    """Processes that each know their rank; `run` calls a function of a module in as many of them as asked."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_runs = 0
        self._start()

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `function(world, *args)` returns on each of the first `size` ranks."""
        if not self._meet(size, function, *args):
            warnings.warn("ranks did not meet: they are started again", stacklevel=2)
            self.close()
            self._start()
            assert self._meet(size, function, *args), "ranks do not meet"
        answers: list[Any] = []
        for rank, pipe in enumerate(self._pipes[:size]):
            others = "\n".join(text for is_fine, text in answers if not is_fine)
            assert pipe.poll(_LIMIT_S), f"rank {rank} does not answer\n{others}"
            answers.append(pipe.recv())
        failed = [text for is_fine, text in answers if not is_fine]
        assert not failed, "\n".join(failed)
        return [value for _, value in answers]

    def _start(self) -> None:
        context = get_context("forkserver")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self._size, port), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _meet(self, size: int, function: Callable[..., Any], *args: Any) -> bool:
        self._num_runs += 1  # meet apart from earlier ones
        for pipe in self._pipes[:size]:
            pipe.send((f"{self._num_runs}", size, function, args))
        return all(pipe.poll(_MEET_S) and pipe.recv() == _MET for pipe in self._pipes[:size])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()  # a server that forked them may have SIGTERM blocked, and so have they
        for process in self._processes:
            process.join()


def _serve(pipe: Connection, rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, wait_for_workers=False)
    while True:
        try:
            name, wanted, function, args = pipe.recv()
        except EOFError:
            return
        try:
            meeting = Meeting(dist.PrefixStore(name, store), rank, wanted)
            pipe.send(_MET)
            try:
                with remembering():
                    answer = function(World(rank, wanted, rank, wanted, meeting=meeting), *args)
                pipe.send((True, answer))
            finally:
                meeting.close()
        except BaseException:  # noqa: BLE001 (the test shows it)
            pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
