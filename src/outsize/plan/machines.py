"""The catalogue of machines: GPUs and hosts by name, what they hold and what they do in a second, with sources."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from outsize.errors import PlanError, explain
from outsize.plan.facts import Machine
from outsize.plan.times import Rates, op_seconds
from outsize.units import format_count

__all__ = ["CATALOGUE", "GB", "GIB", "TERA", "GpuSpec", "HostSpec", "Rates", "find_machine", "op_seconds"]

GIB, GB, TERA = 2**30, 10**9, 10**12  # memory is sold in GiB, rates are given in powers of ten

# What a process spends before its first tensor: an idle CUDA process holds 460 to 510 MiB on a card of 2022 and later
# (nvidia-smi). Where the card is at hand, its own free memory is asked for instead.
CONTEXT_BYTES = GIB // 2
# What the system, the page cache and the program itself leave of a host's memory.
HOST_USABLE_SHARE = 0.9


@dataclass(frozen=True)
class HostSpec:
    """A named host: how many GPUs share it, and what they share."""

    name: str
    title: str
    num_gpus: int
    num_cores: int
    memory_bytes: int
    source: str


@dataclass(frozen=True)
class GpuSpec:
    """One GPU by name, and the host it sits in where a host was named."""

    name: str
    title: str
    memory_bytes: int  # as sold
    visible_bytes: int  # as the driver tells a program: less error correction and what the driver keeps
    link: str
    link_source: str
    rates: Rates
    source: str
    aliases: tuple[str, ...] = ()
    host: HostSpec | None = None

    @property
    def usable_bytes(self) -> int:
        """What is left for tensors: visible memory less the context of one process."""
        return self.visible_bytes - CONTEXT_BYTES

    def beyond_host(self, num_gpus: int) -> str | None:
        """Say that so many GPUs are more than one such host has; None where they are not, or no host is named."""
        if self.host is None or num_gpus <= self.host.num_gpus:
            return None
        has, hosts = format_count(self.host.num_gpus, "GPU"), -(-num_gpus // self.host.num_gpus)
        return f"{num_gpus} GPUs are more than one {self.host.title} has ({has}): this is for {hosts} of them"

    def as_machine(self, num_gpus: int = 1) -> Machine:
        """Return the facts of one GPU out of several with its part of the host; 0 where no host is named."""
        if num_gpus < 1:
            raise PlanError(explain("no such number of GPUs", num_gpus, "1 or more", "correct --gpus"))
        num_cores, host_bytes = 0, 0
        if self.host is not None:
            here = min(num_gpus, self.host.num_gpus)  # more GPUs than one host has: several such hosts
            num_cores = self.host.num_cores // here
            host_bytes = int(self.host.memory_bytes * HOST_USABLE_SHARE) // here
        return Machine("cuda:0", self.title, self.visible_bytes, self.usable_bytes, num_cores, host_bytes)


def find_machine(name: str) -> GpuSpec:
    """Return the GPU or host of that name, however it is spelt: "v100-16", "Tesla V100-SXM2-16GB", "AC922"."""
    known = {_plain(each): spec for spec in CATALOGUE for each in (spec.name, *spec.aliases)}
    asked = _plain(name)
    if asked in known:
        return known[asked]
    begun = {spec.name: spec.title for each, spec in known.items() if asked and each.startswith(asked)}
    if len(begun) > 1:  # to take one of them would be to guess which card is meant
        needed = f"one of {', '.join(f'{each} ({title})' for each, title in begun.items())}"
        remedy = "name one of them"
        raise PlanError(explain("several machines begin with that name", repr(name), needed, remedy))
    near = difflib.get_close_matches(asked, known, n=6, cutoff=0.5)
    names = list(dict.fromkeys([*begun, *(known[each].name for each in near)]))[:3]
    every = ", ".join(spec.name for spec in CATALOGUE)
    remedy = f"did you mean {' or '.join(names)}?" if names else "take one with about the same memory"
    raise PlanError(explain("unknown machine", repr(name), f"one of {every}", remedy))


def _plain(name: str) -> str:
    """Leave out what people write or do not: case, maker, unit, and what stands between words."""
    return re.sub(r"nvidia|tesla|geforce|generation|gib|gb|[^a-z0-9]", "", name.lower())


class _Link(NamedTuple):
    """A way between host and GPU in GB/s, one direction, as pinned copies reached it."""

    title: str
    source: str
    to_device: float
    to_host: float
    crowded: float | None = None


class _Sheet(NamedTuple):
    """A line of the catalogue, in the units of data sheets."""

    name: str
    title: str
    sold_gib: int
    visible_gib: float
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    memory_gb_per_s: float
    link: _Link
    sheet: str
    aliases: str


_PCIE3 = _Link("PCIe 3.0 x16", "bandwidthTest on a P100 (Microway, 2016); 15.75 GB/s in theory", 11.7, 12.9)
_HALF_PCIE3 = _Link(
    "half of PCIe 3.0 x16", "as PCIe 3.0; two GPUs in one slot: derived, half", 11.7, 12.9, 5.8
)
_PCIE4 = _Link(
    "PCIe 4.0 x16", "nvbandwidth on an A100 (NVIDIA forum, 352186); 31.5 GB/s in theory", 24.8, 24.8
)
_PCIE5 = _Link(
    "PCIe 5.0 x16", "NVIDIA on nvbandwidth (2025); to the host: derived, alike; 63 in theory", 55.6, 55.6
)
_C2C = _Link("NVLink-C2C", "study of Grace Hopper's memory (KTH, 2024); 450 GB/s in theory", 375, 297)
_NVLINK3 = _Link(
    "3 bricks of NVLink 2", "The Next Platform (December 2017); 75 GB/s in theory", 68, 68, 39.25
)
_NVLINK2 = _Link("2 bricks of NVLink 2", "The Next Platform (December 2017); 50 GB/s in theory", 45.9, 45.9)

_DATA_SHEETS = {
    "K80": "NVIDIA Tesla K80 board specification BD-07317-001 (2015); one of two GPUs: derived, half of the board",
    "P100": "NVIDIA Tesla P100 PCIe data sheet (2016), specifications table",
    "P40": "NVIDIA Tesla P40 data sheet (2016), specifications table; visible memory: with error correction off",
    "V100": "NVIDIA V100 data sheet, specifications table, column SXM2",
    "T4": "NVIDIA T4 data sheet, specifications table",
    "TU102": "NVIDIA Turing architecture white paper (2018), table of the RTX 2080 Ti, reference clocks",
    "GA102": "NVIDIA Ampere GA102 architecture white paper (2020), table of the RTX 3090; visible memory: derived",
    "A10": "NVIDIA A10 data sheet, specifications table",
    "A40": "NVIDIA A40 data sheet, specifications table; visible memory: derived, that of the L40S",
    "A100": "NVIDIA A100 data sheet, specifications table, column SXM",
    "AD102": "NVIDIA Ada architecture white paper (2022), table of the RTX 4090",
    "L4": "NVIDIA L4 data sheet, specifications table; halved where given with sparsity",
    "L40S": "NVIDIA L40S data sheet, specifications table",
    "6000": "NVIDIA RTX 6000 Ada data sheet; tensor rates: derived from 1457 TFLOPS in FP8 with sparsity",
    "H100": "NVIDIA H100 data sheet, specifications table, column SXM; halved where given with sparsity",
    "H100P": "NVIDIA H100 data sheet, column PCIe; halved where given with sparsity; visible memory: derived, SXM's",
    "H200": "NVIDIA H200 data sheet, column SXM; halved where given with sparsity; visible memory: one card's, rounded",
    "GH200": "NVIDIA GH200 data sheet, version with 96 GB of HBM3; halved where given with sparsity",
    "B200": "NVIDIA Blackwell architecture technical brief (2024), table of HGX B200; memory: what the driver shows",
}  # fmt: skip

# Visible memory: what PyTorch names as total in out-of-memory messages of public issues; drivers differ a little.
_GPUS = (
    # name, title, GiB sold, GiB visible, TFLOPS: fp32, tf32, fp16, bf16; GB/s of memory, link, data sheet, aliases
    _Sheet("k80", "Tesla K80, one of two GPUs", 12, 11.17, 4.37, None, None, None, 240, _HALF_PCIE3, "K80", ""),
    _Sheet("p100-16", "Tesla P100 16 GB", 16, 15.89, 9.3, None, None, None, 732, _PCIE3, "P100", "p100 p100-pcie-16"),
    _Sheet("p40", "Tesla P40", 24, 23.87, 12, None, None, None, 346, _PCIE3, "P40", "p40-24"),
    _Sheet("v100-16", "Tesla V100 16 GB", 16, 15.77, 15.7, None, 125, None, 900, _PCIE3, "V100", "v100-sxm2-16"),
    _Sheet("v100-32", "Tesla V100 32 GB", 32, 31.75, 15.7, None, 125, None, 900, _PCIE3, "V100", "v100-sxm2-32"),
    _Sheet("t4", "T4", 16, 14.56, 8.1, None, 65, None, 320, _PCIE3, "T4", "t4-16"),
    _Sheet("rtx2080ti", "RTX 2080 Ti", 11, 10.76, 13.4, None, 53.8, None, 616, _PCIE3, "TU102", "2080ti"),
    _Sheet("rtx3090", "RTX 3090", 24, 23.6, 35.6, 35.6, 71, 71, 936, _PCIE4, "GA102", "3090"),
    _Sheet("rtx4090", "RTX 4090", 24, 23.52, 82.6, 82.6, 165.2, 165.2, 1008, _PCIE4, "AD102", "4090"),
    _Sheet("rtx6000-ada", "RTX 6000 Ada", 48, 44.4, 91.1, 182, 364, 364, 960, _PCIE4, "6000", "6000-ada"),
    _Sheet("a10", "A10", 24, 21.99, 31.2, 62.5, 125, 125, 600, _PCIE4, "A10", "a10-24"),
    _Sheet("a40", "A40", 48, 44.4, 37.4, 74.8, 149.7, 149.7, 696, _PCIE4, "A40", "a40-48"),
    _Sheet("l4", "L4", 24, 22.03, 30.3, 60, 121, 121, 300, _PCIE4, "L4", "l4-24"),
    _Sheet("l40s", "L40S", 48, 44.4, 91.6, 183, 362, 362, 864, _PCIE4, "L40S", "l40s-48"),
    _Sheet("a100-40", "A100 40 GB", 40, 39.5, 19.5, 156, 312, 312, 1555, _PCIE4, "A100", "a100-sxm4-40 a100-sxm-40"),
    _Sheet("a100-80", "A100 80 GB", 80, 79.25, 19.5, 156, 312, 312, 2039, _PCIE4, "A100", "a100-sxm4-80 a100-sxm-80"),
    _Sheet("h100-80", "H100 SXM 80 GB", 80, 79.1, 67, 494, 989, 989, 3350, _PCIE5, "H100", "h100-sxm h100-80-hbm3"),
    _Sheet("h100-80-pcie", "H100 PCIe 80 GB", 80, 79.1, 51, 378, 756, 756, 2000, _PCIE5, "H100P", "h100-pcie"),
    _Sheet("h200", "H200 SXM 141 GB", 141, 139, 67, 494, 989, 989, 4800, _PCIE5, "H200", "h200-141 h200-sxm"),
    _Sheet("gh200", "GH200 96 GB", 96, 94.8, 67, 494, 990, 990, 4000, _C2C, "GH200", "gh200-96 gh200-480"),
    _Sheet("b200", "B200 SXM 180 GB", 180, 178.3, 80, 1100, 2250, 2250, 8000, _PCIE5, "B200", "b200-180 b200-sxm"),
)  # fmt: skip

# Crowded: mean of a copy, seen by nvprof while four GPUs swapped activations of a segmentation model in training.
_STUDY = "published study of tensor swapping on three machines: the host, and its link by nvprof while all GPUs copy"
_HOSTS: tuple[tuple[HostSpec, str, _Link], ...] = (
    (HostSpec("ac922", "IBM AC922", 4, 32, 512 * GIB, _STUDY), "v100-16", _NVLINK3),
    (HostSpec("dgx-station", "DGX Station", 4, 20, 256 * GIB, _STUDY), "v100-16", _PCIE3._replace(crowded=6.94)),
    (HostSpec("p3.8xlarge", "AWS p3.8xlarge", 4, 32, 244 * GIB, _STUDY), "v100-16", _PCIE3._replace(crowded=6.42)),
    (HostSpec("summit", "Summit node", 6, 42, 512 * GIB, "Summit user guide (ORNL)"), "v100-16", _NVLINK2),
    (HostSpec("dgx-1", "DGX-1", 8, 40, 512 * GIB, "NVIDIA DGX-1 system architecture white paper"), "v100-16", _PCIE3),
    (HostSpec("gh200", "Grace Hopper", 1, 72, 480 * GB, "NVIDIA GH200 data sheet: Grace"), "gh200", _C2C),
    (HostSpec("xc50", "Cray XC50 node", 1, 12, 64 * GIB, "Piz Daint user guide (CSCS)"), "p100-16", _PCIE3),
)  # fmt: skip


def _gpu(row: _Sheet) -> GpuSpec:
    to_device, to_host, crowded = _speeds(row.link)
    rates = Rates(
        fp32_flops_per_s=row.fp32_tflops * TERA,
        tf32_flops_per_s=_scaled(row.tf32_tflops, TERA),
        fp16_flops_per_s=_scaled(row.fp16_tflops, TERA),
        bf16_flops_per_s=_scaled(row.bf16_tflops, TERA),
        memory_bytes_per_s=row.memory_gb_per_s * GB,
        to_device_bytes_per_s=to_device,
        to_host_bytes_per_s=to_host,
        crowded_bytes_per_s=crowded,
        origin="published",
    )
    return GpuSpec(
        name=row.name,
        title=row.title,
        memory_bytes=row.sold_gib * GIB,
        visible_bytes=int(row.visible_gib * GIB),
        link=row.link.title,
        link_source=row.link.source,
        rates=rates,
        source=_DATA_SHEETS[row.sheet],
        aliases=tuple(row.aliases.split()),
    )


def _in_host(gpu: GpuSpec, host: HostSpec, link: _Link) -> GpuSpec:
    to_device, to_host, crowded = _speeds(link)
    return replace(
        gpu,
        name=host.name,
        title=f"{gpu.title} in {host.title}",
        link=link.title,
        link_source=link.source,
        rates=replace(
            gpu.rates,
            to_device_bytes_per_s=to_device,
            to_host_bytes_per_s=to_host,
            crowded_bytes_per_s=crowded,
        ),
        source=f"{host.source}; GPU: {gpu.source}",
        aliases=gpu.aliases if host.name == gpu.name else (),
        host=host,
    )


def _speeds(link: _Link) -> tuple[float, float, float | None]:
    return link.to_device * GB, link.to_host * GB, _scaled(link.crowded, GB)


def _scaled(number: float | None, unit: int) -> float | None:
    return None if number is None else number * unit


_CARDS = {row.name: _gpu(row) for row in _GPUS}
_IN_HOSTS = {host.name: _in_host(_CARDS[gpu], host, link) for host, gpu, link in _HOSTS}
CATALOGUE: tuple[GpuSpec, ...] = tuple((_CARDS | _IN_HOSTS).values())
