"""Batches from processes: in order, the same processes for all epochs, errors whole, gone when closed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import closing

import psutil
import pytest
import torch

from outsize.data.feeding import processes
from outsize.data.feeding.processes import BatchProcesses, can_share
from outsize.errors import DataError, RunError

Key = tuple[int, int]


def _make(key: Key) -> tuple[torch.Tensor, int]:
    time.sleep(random.random() * 0.005)
    return torch.tensor(key), os.getpid()


def _make_or_fail(key: Key) -> int:
    if key == (0, 2):
        raise DataError("tile 2 is broken")
    return 0


def _make_or_die(key: Key) -> int:
    if key == (0, 2):
        os.kill(os.getpid(), 9)
    return 0


def test_order_and_processes_stay_over_epochs() -> None:
    found = []
    with closing(BatchProcesses(_make, num_processes=2, pin=False)) as workers:
        for epoch in range(3):
            found.append(list(workers.make([(epoch, step) for step in range(7)])))
    keys = [[tuple(tensor.tolist()) for tensor, _ in epoch] for epoch in found]
    assert keys == [[(epoch, step) for step in range(7)] for epoch in range(3)]
    assert len({process for epoch in found for _, process in epoch} - {os.getpid()}) == 2


def test_an_epoch_left_early_does_not_leak_into_the_next() -> None:
    with closing(BatchProcesses(_make, num_processes=2, pin=False)) as workers:
        batches = workers.make([(0, step) for step in range(50)])
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert [tensor.tolist() for tensor, _ in workers.make([(1, 0), (1, 1)])] == [[1, 0], [1, 1]]


def test_chance_is_not_touched() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    with closing(BatchProcesses(_make, num_processes=1, pin=False)) as workers:
        list(workers.make([(0, 0)]))
    assert torch.rand(2).tolist() == wanted.tolist()


def test_closing_ends_the_processes() -> None:
    workers = BatchProcesses(_make, num_processes=2, pin=False)
    made = list(workers.make([(0, step) for step in range(4)]))
    processes = [psutil.Process(pid) for pid in {process for _, process in made}]
    assert len(processes) == 2
    workers.close()
    assert psutil.wait_procs(processes, timeout=300)[1] == []


def test_an_error_comes_through_whole() -> None:
    with (
        closing(BatchProcesses(_make_or_fail, num_processes=2, pin=False)) as workers,
        pytest.raises(DataError, match=r"^tile 2 is broken$"),
    ):
        list(workers.make([(0, step) for step in range(4)]))


def test_a_killed_process_is_told() -> None:
    with (
        closing(BatchProcesses(_make_or_die, num_processes=1, pin=False)) as workers,
        pytest.raises(RunError, match="a process that prepares data ended"),
    ):
        list(workers.make([(0, step) for step in range(9)]))


def test_a_process_that_took_its_memory_along_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise FileNotFoundError("/proc/1234/fd/5")

    monkeypatch.setattr("outsize.data.feeding.parcels._mapped_here", gone)
    with (
        closing(BatchProcesses(_make, num_processes=1, pin=False)) as workers,
        pytest.raises(RunError, match="a process that prepares data ended"),
    ):
        list(workers.make([(0, 0)]))


def test_what_was_given_out_is_not_written_over() -> None:
    """The memory that batches come in is used again, also by those made ahead."""
    with closing(BatchProcesses(_make, num_processes=2, pin=False)) as workers:
        found = list(workers.make([(0, step) for step in range(40)]))
    assert [tensor.tolist() for tensor, _ in found] == [[0, step] for step in range(40)]


def test_shared_memory_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    assert not can_share(1 << 50, 2)
    monkeypatch.setattr(processes, "_SHARED", tmp_path)
    assert can_share(1, 2)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for processes that will not end."""
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.1)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)


def _make_or_hang(key: Key) -> int:
    if key == (0, 1):
        time.sleep(3600)
    return os.getpid()


@pytest.mark.usefixtures("_hasty")
def test_a_process_that_dies_while_another_works_is_noticed_and_named() -> None:
    """Whose turn it is works on: by itself the loader would look after 5 s, and another time for each wait."""
    with closing(BatchProcesses(_make_or_hang, num_processes=2, pin=False)) as workers:
        batches = workers.make([(0, step) for step in range(9)])
        other = next(batches)
        os.kill(other, signal.SIGKILL)
        with pytest.raises(RunError, match=rf"process {other} by signal SIGKILL"):
            next(batches)


def test_signals_to_the_group_do_not_reach_processes() -> None:
    with closing(BatchProcesses(_make, num_processes=2, pin=False)) as workers:
        batches = workers.make([(0, step) for step in range(30)])
        for signum in (signal.SIGINT, signal.SIGTERM):
            os.kill(next(batches)[1], signum)
        assert len(list(batches)) == 28


@pytest.mark.usefixtures("_hasty")
def test_processes_that_do_not_end_are_ended() -> None:
    before = {each.pid for each in multiprocessing.active_children()}
    workers = BatchProcesses(_make_or_hang, num_processes=2, pin=False)
    batches = workers.make([(0, step) for step in range(9)])
    next(batches)
    own = {each.pid for each in multiprocessing.active_children()} - before
    batches.close()
    workers.close()
    assert own
    assert not own & {each.pid for each in multiprocessing.active_children()}
