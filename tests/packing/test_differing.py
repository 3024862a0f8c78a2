"""What is said of a job that was packed on another machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outsize.packing.differing import differences, summed
from outsize.plan.plan import Plan

_GIB = 2**30
_PLAN = Plan("train", 4, limit_bytes=8 * _GIB, peak_bytes=4 * _GIB, exact=True, why=("it fits",), step_s=0.1)
_MACHINE: dict[str, Any] = {"device": "cuda:0", "cpu": "EPYC", "num_cores": 16, "host_bytes": 100 * _GIB}
_MACHINE |= {"gpu": "NVIDIA H200", "gpu_bytes": 139 * _GIB, "driver": "580"}
_VERSIONS = {"python": "3.11.7", "torch": "2.11.0"}
_HEAD = {"machine": _MACHINE, "versions": _VERSIONS, "plan": summed(_PLAN)}


def test_nothing_differs() -> None:
    assert differences(_HEAD, {**_MACHINE, "host_bytes": 90 * _GIB}, _VERSIONS, _PLAN) == [
        "packed on a machine like this one: nothing differs"
    ]


def test_machine_versions_and_plan_differ() -> None:
    now = {**_MACHINE, "gpu": "Tesla V100", "gpu_bytes": 16 * _GIB, "num_cores": 8, "driver": None}
    plan = replace(_PLAN, peak_bytes=2 * _GIB, step_s=0.2, exact=False, why=("recomputed",))
    lines = differences(_HEAD, now, {"python": "3.11.7", "torch": "2.12.0", "numpy": "2.1"}, plan)
    assert lines == [
        "packed on NVIDIA H200, planned here for Tesla V100:",
        "  GPU: Tesla V100 instead of NVIDIA H200",
        "  driver: none instead of 580",
        "  cores: 8 instead of 16",
        "  GPU memory: 16.0 GiB instead of 139.0 GiB",
        "  torch 2.12.0 instead of 2.11.0",
        "  numpy 2.1 instead of none",
        "  the step: recomputed, instead of: it fits",
        "  the step is approximate here",
        "  its peak: 2.0 GiB instead of 4.0 GiB",
        "  its time: 200.0 ms instead of 100.0 ms predicted",
        "  other kernels round otherwise: a training goes on as well, and not the same to the last bit",
    ]


def test_a_library_alone_changes_no_bits() -> None:
    lines = differences(_HEAD, _MACHINE, {**_VERSIONS, "rich": "15"}, _PLAN)
    assert len(lines) == 2
