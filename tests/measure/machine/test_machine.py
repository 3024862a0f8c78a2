"""The machine at hand, and devices by name."""

from __future__ import annotations

import os

import psutil
import pytest
import torch

from outsize.errors import JobError
from outsize.measure.machine import look_at_machine, pick_device
from outsize.measure.machine import machine as machine_module
from outsize.measure.machine.machine import num_cores


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("_no_gpu")
def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:7", "gpu", "", "meta"])
def test_a_device_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(JobError, match=rf"no such device: found {name}.*one of cpu; choose with --device"):
        pick_device(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(JobError, match="one of cpu, cuda:0, cuda:1"):
        pick_device("cuda:2")


def test_facts_of_the_host() -> None:
    found = look_at_machine(torch.device("cpu"))
    assert found.device == "cpu"
    assert found.name
    assert (
        0 < found.free_bytes == found.host_free_bytes <= found.memory_bytes == psutil.virtual_memory().total
    )
    assert 1 <= found.num_cores == num_cores() <= (os.cpu_count() or 1)


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "free_host_bytes", lambda: 12345)
    assert look_at_machine(torch.device("cpu")).free_bytes == 12345
