"""The catalogue of links: what carries gradients and activations from GPU to GPU and host to host, with sources."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from outsize.errors import PlanError, explain

__all__ = ["LINKS", "LinkSpec", "Network", "find_link", "measured_link", "network_of"]

_GB, _US = 10**9, 1e-6


@dataclass(frozen=True)
class LinkSpec:
    """A way from one GPU to the next, or from one host to the next, which all its GPUs share; in one direction."""

    name: str
    title: str
    within: Literal["host", "hosts"]
    bytes_per_s: float  # as reached
    theory_bytes_per_s: float
    latency_s: float  # of one message, with the kernel or the process that sends it
    source: str

    def seconds(self, num_bytes: float) -> float:
        """Return how long one message takes."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Network:
    """GPUs in hosts: a link inside of each, and one that all GPUs of a host share towards the others."""

    inside: LinkSpec
    between: LinkSpec
    gpus_per_host: int = 1

    def between_ranks(self, one: int, other: int) -> LinkSpec:
        """Return the link between two ranks, which fill one host after the other."""
        return self.inside if one // self.gpus_per_host == other // self.gpus_per_host else self.between


# How long one message of a ring takes besides its bytes. That of NVLink was read in the tuning table of NCCL (ring,
# "simple"); those of PCIe and of networks are recalled from the same table. Nothing here hangs on them: gradients and
# activations are megabytes.
_NVLINK_US, _PCIE_US, _NETWORK_US, _SOCKET_US = 3.4, 5.7, 14.0, 50.0
_FRAMES = "derived: 1460 of 1538 bytes of a frame are payload"
_NCCL = "NVIDIA/nccl-tests, issue"

# name, title, GB/s reached, GB/s in theory, latency in us, source
_HOST = (
    ("pcie3", "PCIe 3.0 x16", 11.7, 15.75, _PCIE_US, "as to the host: bandwidthTest on a P100 (Microway, 2016)"),
    ("pcie4", "PCIe 4.0 x16", 24.8, 31.5, _PCIE_US, "as to the host: nvbandwidth on an A100 (NVIDIA forum, 352186)"),
    ("pcie5", "PCIe 5.0 x16", 54.0, 63.0, _PCIE_US, "p2pBandwidthLatencyTest, 8 RTX PRO 6000 (rtx6kpro notes)"),
    ("nvlink2-1", "1 brick of NVLink 2", 23.9, 25.0, _NVLINK_US, "derived: half of nvlink2-2"),
    ("nvlink2-2", "2 bricks of NVLink 2", 47.9, 50.0, _NVLINK_US, "p2pBandwidthLatencyTest, V100-SXM2 (Dell, C4130)"),
    ("nvlink2-3", "3 bricks of NVLink 2", 71.8, 75.0, _NVLINK_US, "derived: one and a half times nvlink2-2"),
    ("nvlink3", "NVLink 3 (A100)", 240.0, 300.0, _NVLINK_US, "NVIDIA/nccl, issue 1712: bus bandwidth of 8 A100"),
    ("nvlink4", "NVLink 4 (H100, H200)", 370.0, 450.0, _NVLINK_US, f"{_NCCL} 212: rings on 8 H100"),
    ("nvlink5", "NVLink 5 (B200)", 740.0, 900.0, _NVLINK_US, "derived: the share of its theory that NVLink 4 reaches"),
)  # fmt: skip
_HOSTS = (
    ("infiniband-edr", "InfiniBand EDR", 12.2, 12.5, _NETWORK_US, f"{_NCCL} 29: as good as it gets with one card"),
    ("infiniband-edr-2", "2 rails of InfiniBand EDR", 23.0, 25.0, _NETWORK_US, "Summit user guide: into a node"),
    ("infiniband-edr-4", "4 cards of InfiniBand EDR", 48.0, 50.0, _NETWORK_US, f"{_NCCL} 29: DGX-1"),
    ("infiniband-hdr", "InfiniBand HDR", 24.0, 25.0, _NETWORK_US, "derived: an eighth of infiniband-hdr-8"),
    ("infiniband-hdr-8", "8 cards of InfiniBand HDR", 192.0, 200.0, _NETWORK_US, "NVIDIA/nccl, issue 812: DGX A100"),
    ("infiniband-ndr", "InfiniBand NDR", 48.0, 50.0, _NETWORK_US, "derived: the share of its theory that HDR reaches"),
    ("infiniband-ndr-8", "8 cards of InfiniBand NDR", 384.0, 400.0, _NETWORK_US, "derived: 8 times infiniband-ndr"),
    ("aries", "Cray Aries", 10.0, 16.0, _NETWORK_US, "Cray white paper WP-Aries01-1112; recalled, not read again"),
    ("ethernet-10", "Ethernet, 10 Gbit/s", 1.19, 1.25, _SOCKET_US, _FRAMES),
    ("ethernet-25", "Ethernet, 25 Gbit/s", 2.97, 3.125, _SOCKET_US, _FRAMES),
    ("ethernet-100", "Ethernet, 100 Gbit/s", 11.87, 12.5, _SOCKET_US, _FRAMES),
)  # fmt: skip


def _spec(row: tuple[str, str, float, float, float, str], within: Literal["host", "hosts"]) -> LinkSpec:
    name, title, reached, theory, latency_us, source = row
    return LinkSpec(name, title, within, reached * _GB, theory * _GB, latency_us * _US, source)


LINKS: tuple[LinkSpec, ...] = (
    *(_spec(row, "host") for row in _HOST),
    *(_spec(row, "hosts") for row in _HOSTS),
)

# What connects the GPUs of the named hosts, fewest bricks between any two.
_NVLINK_OF_HOSTS = {
    "ac922": "nvlink2-3",
    "dgx-station": "nvlink2-1",
    "p3.8xlarge": "nvlink2-1",
    "summit": "nvlink2-2",
    "dgx-1": "nvlink2-1",
}


def network_of(host: str | None, gpus_per_host: int, num_gpus: int, named: str) -> Network:
    """Return what connects GPUs: of a named host its own links inside; a link of one host puts all GPUs into one."""
    link = find_link(named)
    if link.within == "host":
        return Network(link, link, num_gpus)
    inside = find_link(_NVLINK_OF_HOSTS[host]) if host in _NVLINK_OF_HOSTS else link
    return Network(inside, link, gpus_per_host)


def measured_link(latency_s: float, bytes_per_s: float) -> LinkSpec:
    """Return what was measured between the processes of a job."""
    source = "measured when they met"
    return LinkSpec("here", "as these ranks meet", "hosts", bytes_per_s, bytes_per_s, latency_s, source)


def find_link(name: str) -> LinkSpec:
    """Return the link of that name; case, spaces and hyphens do not matter."""
    known = {_plain(spec.name): spec for spec in LINKS}
    asked = _plain(name)
    if asked in known:
        return known[asked]
    near = [known[each].name for each in difflib.get_close_matches(asked, known, n=3, cutoff=0.5)]
    every = ", ".join(spec.name for spec in LINKS)
    remedy = f"did you mean {' or '.join(near)}?" if near else "take one that is about as fast"
    raise PlanError(explain("unknown link", repr(name), f"one of {every}", remedy))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
