"""The fingerprint of the machine that measures: what it is, and what it does in a second."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from outsize.measure.remembered import device_name, driver
from outsize.measurement import Fingerprint
from outsize.plan.facts import Machine
from outsize.plan.machines import CATALOGUE
from outsize.plan.times import Rates

_ALIKE = 0.1  # of a card's memory: drivers keep more or less for themselves


def fingerprint_of(
    device: torch.device,
    machine: Machine,
    rates: Rates,
    limits: Mapping[str, int | None],
    *,
    num_gpus: int = 1,
) -> Fingerprint:
    """Describe the machine at hand, with the limits of a job."""
    on_gpu = device.type == "cuda"
    gpu = device_name(device) if on_gpu else None
    return Fingerprint(
        device=str(device),
        cpu=device_name(torch.device("cpu")),
        num_cores=machine.num_cores,
        host_bytes=machine.host_free_bytes,
        gpu=gpu,
        gpu_bytes=machine.memory_bytes if on_gpu else None,
        num_gpus=num_gpus if on_gpu else 0,
        driver=driver(device) or None,
        rates=rates.as_dict(),
        limits={name: size for name, size in limits.items() if size is not None},
        catalogue=None if gpu is None else _in_catalogue(gpu, machine.memory_bytes),
    )


def _in_catalogue(gpu: str, memory_bytes: int) -> str | None:
    """Return the name that the catalogue has for a card: parts of it are in what the driver says, memory agrees."""
    told = re.sub(r"[^a-z0-9]", "", gpu.lower())
    found: list[tuple[int, str]] = []
    for spec in CATALOGUE:
        first, *others = spec.name.split("-")
        words = [
            each for each in others if not each.isdigit()
        ]  # digits are GiB, which drivers count otherwise
        is_as_large = abs(spec.visible_bytes - memory_bytes) < _ALIKE * memory_bytes
        if first in told and is_as_large:
            found.append((sum(1 if each in told else -1 for each in words), spec.name))
    return max(found)[1] if found else None
