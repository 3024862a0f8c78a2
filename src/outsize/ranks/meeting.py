"""Where ranks meet: a process group of torch for each round, which ends for all when one of them breaks off.

    round 0   step 1, step 2, memory runs out on rank 1 --> it says so, and leaves the group
              the others' collectives fail               --> they look whether somebody said so, and leave, too
    round 1   all meet again and agree on what comes next

Numbers of the host go by gloo and never wait for a GPU, or if they are few and all ranks on one machine by `near`;
tensors of GPUs go by NCCL, where each rank has one for itself.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Loaded before there is a group: its functions take the group of the moment as a default, and keep its connections open
# after this rank has left. Parts of torch load it by themselves; others would then wait for who ends.
import torch.distributed.nn.functional
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from outsize.ranks.near import Near, meet_near

_COLLECTIVE_S = 12 * 3600.0  # others wait while one plans, finishes a map, or predicts what nobody can share
_HEARD_S = 5.0  # for the others, to hear that a rank has left, before the store goes with it
_SAME_S = 1.0  # between ranks that find the same error
_LOOK_S = 0.02
_OF_RANKS = ("gloo", "NCCL", "Connection reset by peer", "Connection closed by peer", "Broken pipe")


Parts = tuple[tuple[int, ...], ...]  # of all ranks, each in one of them


class Meeting:
    """The group of ranks in this round; lives as long as they work together."""

    def __init__(self, store: Store, rank: int, size: int, *, own_gpus: bool = False) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._backend = "cpu:gloo,cuda:nccl" if own_gpus else "gloo"
        self.own_gpus = own_gpus
        self._round = 0
        self._apart: list[
            tuple[Parts, str]
        ] = []  # in which order groups of some ranks are made in each round
        self._groups: dict[tuple[tuple[int, ...], str], dist.ProcessGroup] = {}  # of this round
        self._near: dict[tuple[int, ...], Near | None] = {}  # of this round
        self._begin()

    def part(self, parts: Parts, name: str = "") -> None:
        """Have each of these parts of all ranks meet by itself, too; all of them come by here, in one order."""
        if (parts, name) not in self._apart:
            self._apart.append((parts, name))
            self._make(parts, name)

    def group(self, ranks: tuple[int, ...], name: str = "") -> dist.ProcessGroup:
        """Return the group of a part; another name is another group of the same ranks."""
        return self._groups[ranks, name]

    def near(self, ranks: tuple[int, ...]) -> Near | None:
        """Return how few numbers go among ranks of a part, (): of all; None where they are on several machines.

        All of them come by here, when they first have any.
        """
        if ranks not in self._near:
            group = self._groups[ranks, ""] if ranks else None
            num = len(ranks) or self._size

            def tell(mine: Any) -> list[Any]:
                told = [None] * num
                dist.all_gather_object(told, mine, group=group)
                return told

            self._near[ranks] = meet_near(dist.get_rank(group), num, tell)
        return self._near[ranks]

    def _make(self, parts: Parts, name: str) -> None:
        # by all ranks, also those that are not in it: made by its members alone, groups in another order never meet
        for ranks in parts:
            made = dist.new_group(list(ranks), timedelta(seconds=_COLLECTIVE_S))
            if isinstance(made, dist.ProcessGroup):
                self._groups[ranks, name] = made

    def break_off(self) -> None:
        """Say that this rank cannot go on as all do, and leave: the others' collectives fail."""
        self._store.set(f"broken/{self._round}", str(self._rank))
        self._leave()

    def is_broken_off(self, error: RuntimeError) -> bool:
        """Say whether an error is that of a collective which a rank has left that meets the others again."""
        try:
            return is_of_ranks(error) and bool(self._store.check([f"broken/{self._round}"]))
        except RuntimeError:  # the store is gone
            return False

    def renew(self) -> None:
        """Meet again, all of them, after a round that was broken off."""
        self._leave()
        self._round += 1
        self._begin()
        for parts, name in self._apart:
            self._make(parts, name)

    def close(self, exit_code: int | None = None) -> None:
        """Leave for good; `exit_code` is that of a rank that ends by an error which it reports."""
        if exit_code is None:
            self._leave()
            return
        try:
            self._store.set(f"exit/{self._rank}", str(exit_code))
            self._leave()
            until_s = time.monotonic() + _HEARD_S
            while self._store.add("heard", 0) < self._size - 1 and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        except RuntimeError:  # who held the store is gone
            return

    def owner_ends(self) -> bool:
        """Say whether rank 0 ends by an error at about the same moment."""
        until_s = time.monotonic() + _SAME_S
        try:
            while not self._store.check(["exit/0"]):
                if time.monotonic() > until_s:
                    return False
                time.sleep(_LOOK_S)
        except RuntimeError:  # the store is gone
            return True
        return True

    def exit_code(self) -> int | None:
        """Return the exit code of a rank that has left by an error that it reported; None where none has."""
        for rank in range(self._size):
            if self._store.check([f"exit/{rank}"]):
                code = int(self._store.get(f"exit/{rank}"))
                self._store.add("heard", 1)
                return code
        return None

    def _begin(self) -> None:
        dist.init_process_group(
            self._backend,
            store=PrefixStore(f"round/{self._round}", self._store),
            rank=self._rank,
            world_size=self._size,
            timeout=timedelta(seconds=_COLLECTIVE_S),
        )

    def _leave(self) -> None:
        if not dist.is_initialized():
            return
        if "nccl" in self._backend:  # its kernels would wait for the others forever
            for group in (*self._groups.values(), dist.group.WORLD):
                group._get_backend(torch.device("cuda")).abort()  # type: ignore[union-attr]
        for near in self._near.values():
            if near is not None:
                near.close()
        self._near.clear()
        self._groups.clear()
        dist.destroy_process_group()


def is_of_ranks(error: RuntimeError) -> bool:
    """Say whether an error is that of a collective which another rank has left."""
    return any(each in str(error) for each in _OF_RANKS)
