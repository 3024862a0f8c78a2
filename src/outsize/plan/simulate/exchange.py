"""How long GPUs take to sum gradients, and to hand borders of a picture to their neighbours.

    ring    each of n ranks sends 2 (n-1)/n of the bytes to the next one, in 2 (n-1) messages
    tree    hosts sum pairwise up a tree and send back down it: all bytes twice, but only 2 log2 messages one after
            another, which is what counts where there are hundreds of hosts

Gradients are ready layer by layer, the last layer first; what is summed before backward has ended costs nothing:

    backward   |== layer 9 ==|== layer 8 ==|=== ... ===|= layer 0 =|
    link                     |-- 9 --|     |-- 8 --|               |-- 0 --|   <- only this is waited for
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outsize.plan.links import LinkSpec, Network

__all__ = ["BUCKET_BYTES", "HostCopies", "borders_s", "exposed_s", "ring_s", "sum_gradients_s", "tree_s"]

BUCKET_BYTES = 25 * 2**20  # that PyTorch's data parallelism sums at once


@dataclass(frozen=True)
class HostCopies:
    """Gradients that are summed in host memory: every GPU copies its own there, and the sum back."""

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        """Return the time of both copies."""
        return num_bytes / self.to_host_bytes_per_s + num_bytes / self.to_device_bytes_per_s


def ring_s(num_bytes: float, num: int, link: LinkSpec) -> float:
    """Return the time to sum over ranks in a ring whose slowest link this is."""
    return 2 * (num - 1) * (link.latency_s + num_bytes / num / link.bytes_per_s)


def tree_s(num_bytes: float, num: int, link: LinkSpec) -> float:
    """Return the time to sum over ranks in a tree, in parts that follow one another closely."""
    return 2 * (math.ceil(math.log2(num)) * link.latency_s + num_bytes / link.bytes_per_s) if num > 1 else 0.0


def sum_gradients_s(
    num_bytes: float, num_ranks: int, net: Network, through: HostCopies | None = None
) -> float:
    """Return the time to sum over ranks that fill host after host: by ring or tree, whichever is faster.

    Over several hosts all GPUs of a host share its link, in a ring that enters and leaves each host once.
    """
    if num_ranks < 2:
        return 0.0
    copies_s = through.seconds(num_bytes) if through is not None else 0.0
    num_hosts = math.ceil(num_ranks / net.gpus_per_host)
    if num_hosts == 1:
        return copies_s + ring_s(num_bytes, num_ranks, net.inside)
    slower = min((net.inside, net.between), key=lambda link: link.bytes_per_s)
    here = min(num_ranks, net.gpus_per_host)
    # the messages of a ring are as late as those between hosts, each of which follows those inside of one
    round_s = 2 * num_hosts * (net.between.latency_s + (here - 1) * net.inside.latency_s)
    ring = round_s + 2 * (num_ranks - 1) / num_ranks * num_bytes / slower.bytes_per_s
    inside_s = 2 * (here - 1) * net.inside.latency_s
    tree = inside_s + tree_s(
        num_bytes, num_hosts, net.between if here == 1 else _with_bytes(net.between, slower)
    )
    return copies_s + min(ring, tree)


def _with_bytes(link: LinkSpec, slower: LinkSpec) -> LinkSpec:
    return link if link.bytes_per_s <= slower.bytes_per_s else slower


def exposed_s(
    ready: Iterable[tuple[float, float]],
    backward_s: float,
    seconds_of: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Return how long a step waits for sums after backward; `ready` has when, and how many bytes, in that order.

    Bytes are summed in buckets, one after another, each as soon as it is full.
    """
    free_s, waiting = 0.0, 0.0
    for at_s, num_bytes in ready:
        waiting += num_bytes
        if waiting >= bucket_bytes:
            free_s, waiting = max(free_s, at_s) + seconds_of(waiting), 0.0
    if waiting:
        free_s = max(free_s, backward_s) + seconds_of(waiting)
    return max(0.0, free_s - backward_s)


def borders_s(row_bytes: Iterable[float], link: LinkSpec, *, num_ranks: int) -> float:
    """Return the time for all borders of a step where each rank has some rows of a picture.

    Each layer that looks at neighbours sends its rows both up and down at once, in forward and again in backward.
    """
    if num_ranks < 2:
        return 0.0
    return sum(2 * link.seconds(each) for each in row_bytes)
