"""The machine that measured, as a file tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outsize.bench.fingerprint import _in_catalogue, fingerprint_of
from outsize.measure.machine import look_at_machine
from outsize.plan.machines import CATALOGUE, find_machine

_CPU = torch.device("cpu")


def test_a_cpu_is_described() -> None:
    machine = replace(look_at_machine(_CPU), num_cores=3)
    rates = replace(find_machine("t4").rates, origin="measured")
    found = fingerprint_of(_CPU, machine, rates, {"host_memory": 2**30, "gpu_memory": None})
    assert (found.device, found.gpu, found.num_gpus, found.catalogue) == ("cpu", None, 0, None)
    assert found.name == found.cpu != ""
    assert found.num_cores == 3
    assert found.limits == {"host_memory": 2**30}
    assert found.rates["origin"] == "measured"


@pytest.mark.parametrize(
    ("told", "gib", "name"),
    [
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100-80"),
        ("NVIDIA H100 PCIe", 79.1, "h100-80-pcie"),
        ("Tesla V100-SXM2-16GB", 15.77, "v100-16"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32"),
        ("NVIDIA GeForce RTX 2080 Ti", 10.76, "rtx2080ti"),
        ("NVIDIA A10", 22.0, "a10"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "a100-40"),
        ("NVIDIA L4", 22.0, "l4"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("NVIDIA RTX 6000 Ada Generation", 44.4, "rtx6000-ada"),
        ("NVIDIA GH200 480GB", 94.8, "gh200"),
        ("GRID V100S", 7.9, None),
        ("Quadro P400", 2.0, None),
    ],
)
def test_a_card_is_found_in_the_catalogue(told: str, gib: float, name: str | None) -> None:
    assert _in_catalogue(told, int(gib * 2**30)) == name
    assert name is None or name in {each.name for each in CATALOGUE}
