"""Few numbers among processes of one machine, by sockets of its kernel: a tenth of what they take over gloo.

rank 0 --- rank 1      each pair is connected once; a row goes to all others and one of each comes back,
   \\         /         without another thread on the way, which is what takes gloo its time
     rank 2

Who waits sleeps in the kernel, and who leaves or dies is noticed at once, as with gloo.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MOST_BYTES = (
    2**15
)  # of a row: all ranks send before they read, and two rows fit what a socket holds of itself
_RANK_BYTES = 4


class Near:
    """The connections of one rank to all others of a group."""

    def __init__(self, rank: int, peers: dict[int, socket.socket]) -> None:
        self._rank, self._peers = rank, peers

    def gathered(self, own: Tensor) -> Tensor:
        """Return a row of numbers of each rank."""
        rows = own.new_empty((len(self._peers) + 1, own.numel()))
        rows[self._rank] = own.detach()
        held = [memoryview(each) for each in rows.view(torch.uint8).numpy()]
        rank = self._rank
        try:
            for rank, peer in self._peers.items():  # noqa: B007 (named below)
                peer.sendall(held[self._rank])
            for rank, peer in self._peers.items():
                _fill(held[rank], peer)
        except OSError as error:
            raise RuntimeError(f"Connection closed by peer: rank {rank} ({error})") from error
        return rows

    def close(self) -> None:
        """Leave: the others' calls fail."""
        for peer in self._peers.values():
            peer.close()


def takes(tensor: Tensor) -> bool:
    """Say whether these are few numbers, and of the host: all ranks of a group find the same."""
    return tensor.device.type == "cpu" and tensor.nbytes <= MOST_BYTES


def meet_near(rank: int, size: int, tell: Callable[[Any], list[Any]]) -> Near | None:
    """Connect all ranks of a group, which call this together; None where they are not all on one machine.

    `tell` returns what each of them has told.
    """
    peers: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        # a folder that only this user can enter, and so can only this user's processes connect
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outsize-near-"))) / "0"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        try:
            listener.bind(str(place))
            listener.listen(size)
        except OSError:  # such as a path too long for a socket: then nobody finds it
            place = place.with_name("none")
        places = tell(str(place))
        is_there = True
        for other in range(rank):
            peers[other] = socket.socket(socket.AF_UNIX)
            try:
                peers[other].connect(places[other])
                peers[other].sendall(rank.to_bytes(_RANK_BYTES))
            except OSError:
                is_there = False
        if not all(tell(is_there)):
            for peer in peers.values():
                peer.close()
            return None
        for _ in range(rank + 1, size):
            peer, _ = listener.accept()
            name = bytearray(_RANK_BYTES)
            _fill(memoryview(name), peer)
            peers[int.from_bytes(name)] = peer
    return Near(rank, peers)


def _fill(held: memoryview, peer: socket.socket) -> None:
    num = 0
    while num < len(held):
        more = peer.recv_into(held[num:], 0, socket.MSG_WAITALL)
        if more == 0:
            raise ConnectionError("it has left")
        num += more
