"""Where pieces are made: by processes of this machine, or by the workers of a Dask cluster, both as one Executor.

    processes    ProcessPoolExecutor; each begins without torch and ends with this process
    cluster      distributed.Client(address).get_executor(); dask-jobqueue puts its workers on Slurm, PBS, LSF, HTCondor

Files travel by the disk that all share, never through the scheduler.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from outsize import stopping
from outsize.errors import RunError, explain

_Result = TypeVar("_Result")
_LOOK_S, _END_S, _GRACE_S = 0.2, 2.0, 1.0
_ADDRESS = re.compile(r"[a-z]+://.+:\d+")


class WorkerLost(Exception):
    """A worker died, and with it what it was doing."""


class Processes:
    """Processes of this machine. One that dies takes the others along: all calls are lost, and new ones begin."""

    def __init__(self, num: int) -> None:
        self.num = num
        self._begin()

    def submit(self, call: Callable[..., _Result], *args: object) -> Future[_Result]:
        """Have a process make a call."""
        try:
            with stopping.shielded():  # it may begin a process
                return self._executor.submit(call, *args)
        except BrokenExecutor as error:
            lost: Future[_Result] = Future()
            lost.set_exception(error)
            return lost

    def done(self, calls: Collection[Future[_Result]]) -> set[Future[_Result]]:
        """Wait a moment for calls, and return those that are over."""
        done, _ = wait(calls, _LOOK_S, FIRST_COMPLETED)
        if any(isinstance(each.exception(), BrokenExecutor) for each in done):
            done, _ = wait(calls)
            self.end(at_once=True)
            self._begin()
        return done

    def result(self, call: Future[_Result]) -> _Result:
        """Return what a call that is over has returned. Raises what it raised, WorkerLost."""
        try:
            return call.result()
        except BrokenExecutor as error:
            raise WorkerLost from error

    def end(self, *, at_once: bool) -> None:
        """End them, `at_once` also in the middle of a call."""
        own = set(multiprocessing.active_children()) - self._others
        for process in own if at_once else ():
            process.kill()
        # waited for, or the semaphores of its queues would be left to a warning at the end of this process
        self._executor.shutdown(wait=True, cancel_futures=True)
        for process in own:
            process.join()

    def _begin(self) -> None:
        # not forked: a copy of this process would inherit the locks of GDAL's threads, and wait forever
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["outsize.prepare.piece", "rasterio", "numpy"])
        self._others = set(multiprocessing.active_children())
        self._executor = ProcessPoolExecutor(self.num, mp_context=context, initializer=_begin_process)


class DaskWorkers:
    """The workers of a Dask cluster that somebody else has started. What one that dies did, the scheduler repeats."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        if not _ADDRESS.fullmatch(address):
            need, remedy = "such as tcp://host:8786", "write it as the scheduler prints it"
            raise RunError(explain("no address of a scheduler", repr(address), need, remedy))
        try:
            from distributed import Client, KilledWorker
        except ImportError as error:
            remedy = "pip install 'outsize[cluster]'"
            raise RunError(explain("no Dask here", error, "distributed", remedy)) from error
        self._killed = KilledWorker
        logging.getLogger("distributed").setLevel(
            logging.CRITICAL
        )  # what is lost is said in a line of our own
        try:
            self._client: Any = _soon(
                lambda: Client(address, timeout=timeout_s, set_as_default=False), timeout_s
            )
        except (OSError, TimeoutError) as error:
            found, need = f"no answer in {timeout_s:g} s", "a Dask scheduler"
            remedy = "check the address, and that it runs"
            raise RunError(explain(f"cannot reach the scheduler {address}", found, need, remedy)) from error
        self._executor: Executor = self._client.get_executor(pure=False)

    @property
    def num(self) -> int:
        """How many calls run at once; workers come and go."""
        try:
            return sum(self._client.nthreads().values())
        except (OSError, TimeoutError) as error:
            raise self._gone(error) from error

    def submit(self, call: Callable[..., _Result], *args: object) -> Future[_Result]:
        """Have a worker make a call."""
        return self._executor.submit(call, *args)

    def done(self, calls: Collection[Future[_Result]]) -> set[Future[_Result]]:
        """Wait a moment for calls, and return those that are over."""
        return wait(calls, _LOOK_S, FIRST_COMPLETED).done

    def result(self, call: Future[_Result]) -> _Result:
        """Return what a call that is over has returned. Raises what it raised, WorkerLost, RunError."""
        try:
            return call.result()
        except self._killed as error:  # several workers died of it
            raise WorkerLost from error
        except CancelledError as error:
            raise self._gone("all calls cancelled") from error

    def _gone(self, found: object) -> RunError:
        what, need = f"the scheduler {self._address} is gone", "one that runs to the end"
        return RunError(explain(what, found, need, "repeat the command: what is made stays"))

    def end(self, *, at_once: bool) -> None:
        """Let go of them; `at_once` also in the middle of a call."""
        with suppress(OSError, TimeoutError):
            self._executor.shutdown(wait=not at_once)  # not to wait is to cancel
            self._client.close(timeout=_END_S)


def _soon(make: Callable[[], Any], timeout_s: float) -> Any:
    """Return what is made within a time: Dask itself waits forever for a server that takes a call and says nothing."""
    found: Future[Any] = Future()

    def work() -> None:
        try:
            found.set_result(make())
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return found.result(timeout_s + _GRACE_S)


def _begin_process() -> None:
    threading.Thread(target=_end_with_owner, daemon=True).start()
    # libtiff prints what it finds wrong with a disk, which is said in a line of our own
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)


def _end_with_owner() -> None:
    """Wait for the end of the process that hands out calls; the server that has made this one would wait for us."""
    owner = multiprocessing.parent_process()
    assert owner is not None
    owner.join()
    os._exit(1)


Workers = Processes | DaskWorkers


@contextmanager
def workers(num: int, scheduler: str | None, *, timeout_s: float = 10.0) -> Iterator[Workers]:
    """Have workers while the block runs: so many processes, or those of the cluster whose scheduler is named."""
    found: Workers = Processes(num) if scheduler is None else DaskWorkers(scheduler, timeout_s)
    try:
        yield found
    except BaseException:
        found.end(at_once=True)
        raise
    found.end(at_once=False)
