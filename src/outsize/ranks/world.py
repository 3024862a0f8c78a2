"""A process among those of its job: which one it is, and how all of them add up, hear of each other and agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.ranks.meeting import Meeting
from outsize.ranks.near import Near, takes
from outsize.ranks.pulse import Pulse

T = TypeVar("T")

_MANY_BYTES, _TIMES = 2**21, 8


@dataclass(frozen=True)
class World:
    """The processes of a job as one of them sees them; passed on like the reporter, and a no-op for a process alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those on this machine
    local_size: int = 1
    attempt: int = 0  # how often torchrun has started over
    members: tuple[int, ...] = ()  # of some of a job's processes: their ranks among all; (): these are all
    pulse: Pulse | None = field(default=None, compare=False, repr=False)
    meeting: Meeting | None = field(default=None, compare=False, repr=False)

    def split(self, parts: Sequence[Sequence[int]], *names: str) -> World:
        """Return the part of all processes that this one is in as a world: sums and agreements are its own.

        All come by here; `names` are those of further groups that its members meet in.
        """
        assert not self.members, "a part of a part"
        if self.meeting is not None:
            for name in ("", *names):
                self.meeting.part(tuple(map(tuple, parts)), name)
        mine = next(part for part in parts if self.rank in part)
        return replace(self, rank=mine.index(self.rank), size=len(mine), members=tuple(mine))

    def rank_of_all(self, rank: int) -> int:
        """Return the number among all processes of the job that one of these has."""
        return self.members[rank] if self.members else rank

    def group(self, name: str = "") -> dist.ProcessGroup | None:
        """Return the group of torch that these meet in, apart from others of another name; None: that of all."""
        if self.meeting is None or not self.members:
            return None
        return self.meeting.group(self.members, name)

    @property
    def is_owner(self) -> bool:
        """Whether this process plans, profiles, writes and prints."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    def at(self, phase: str) -> None:
        """Say what this process does from now on: others name it where it is lost."""
        if self.pulse is not None:
            self.pulse.at(phase)

    def share_of(self, amount: int) -> int:
        """Return this process's part of something that its machine has: memory, cores, workers; at least 1."""
        return max(1, amount // self.local_size)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        near = self._near(tensor)
        if near is not None:
            tensor.copy_(near.gathered(tensor.reshape(-1)).sum(0).view(tensor.shape))
        elif not self.is_alone:
            dist.all_reduce(tensor, group=self.group())
        return tensor

    def gathered(self, own: Tensor) -> Tensor:
        """Return a row of numbers of each process: of few, gloo's ring of sums would take twice the time."""
        near = self._near(own)
        if near is not None:
            return near.gathered(own)
        rows = own.new_empty((self.size, len(own)))
        dist.all_gather_into_tensor(rows.view(-1), own, group=self.group())
        return rows

    def _near(self, tensor: Tensor) -> Near | None:
        if self.meeting is None or self.is_alone or not takes(tensor):
            return None
        return self.meeting.near(self.members)

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sum numbers by name; all processes know the same names."""
        return dict(zip(numbers, self.sum_row([*numbers.values()]), strict=True))

    def sum_row(self, numbers: Sequence[float]) -> list[float]:
        """Sum a row of numbers; all processes know what stands where."""
        total = torch.tensor([float(each) for each in numbers], dtype=torch.float64)
        return self.add_up(total).tolist()

    def agree(self, mine: bool) -> bool:
        """Say whether any of the processes says so: what one cannot do, none does."""
        return self.sum({"": float(mine)})[""] > 0

    def broadcast(self, value: T) -> T:
        """Return the owner's value."""
        if self.is_alone:
            return value
        held = [value if self.is_owner else None]
        dist.broadcast_object_list(held, src=self.rank_of_all(0), group=self.group())
        return held[0]  # type: ignore[return-value]

    def owners(self, make: Callable[[], T]) -> T:
        """Return what `make` returns on the owner, who alone calls it."""
        return self.broadcast(make() if self.is_owner else None)  # type: ignore[return-value]

    def owner_first(self, make: Callable[[], T]) -> T:
        """Return what `make` returns on each process; the owner makes it before all others, and says what is wrong."""
        if not self.is_owner:
            self.barrier()
        made = make()
        if self.is_owner:
            self.barrier()
        return made

    def gather(self, value: T) -> list[T]:
        """Return what each process has, in the order of ranks."""
        if self.is_alone:
            return [value]
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value, group=self.group())
        return held

    def collected(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return on the owner what the others have given, on the host; elsewhere nothing."""
        heads = self.gather([(name, tuple(each.shape), each.dtype) for name, each in own.items()])
        owner, group = self.rank_of_all(0), self.group()
        if not self.is_owner:
            for tensor in own.values():
                dist.send(tensor.detach().cpu().contiguous(), owner, group)
            return {}
        found: dict[str, Tensor] = {}
        for rank, heads_of_rank in list(enumerate(heads))[1:]:
            for name, shape, dtype in heads_of_rank:
                found[name] = torch.empty(shape, dtype=dtype)
                dist.recv(found[name], self.rank_of_all(rank), group)
        return found

    def speed(self, device: torch.device) -> tuple[float, float]:
        """Measure how long a small message takes from one process to another, and how many bytes pass in a second."""
        took = [
            self._seconds(device, num_bytes) for num_bytes in (8, 8, _MANY_BYTES)
        ]  # the first one connects
        return self.broadcast((took[1], _MANY_BYTES / max(1e-9, took[2] - took[1])))

    def _seconds(self, device: torch.device, num_bytes: int) -> float:
        own = torch.zeros(num_bytes // 8, dtype=torch.float64, device=device)
        rows = own.new_empty(self.size * len(own))
        self.barrier()
        began_s = time.perf_counter()
        for _ in range(_TIMES):
            dist.all_gather_into_tensor(rows, own, group=self.group())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began_s) / _TIMES

    def break_off(self) -> None:
        """Say that this process cannot go on as all do: the others' collectives fail, until all `renew`."""
        if self.meeting is not None:
            self.meeting.break_off()

    def is_broken_off(self, error: RuntimeError) -> bool:
        """Say whether an error is that of a collective which another process broke off."""
        return self.meeting is not None and self.meeting.is_broken_off(error)

    def renew(self) -> None:
        """Meet all others again after some process broke off."""
        if self.meeting is not None:
            self.meeting.renew()

    def barrier(self) -> None:
        """Wait until all are here."""
        if not self.is_alone:
            self.agree(False)

    def deal(self, items: Sequence[T]) -> list[T]:
        """Return this process's share of a row: every `size`-th, so that neighbours go to different ones."""
        return list(items[self.rank :: self.size])

    def part_of(self, number: int) -> slice:
        """Return this process's stretch of so many: stretches differ by one at most, and follow each other."""
        return slice(number * self.rank // self.size, number * (self.rank + 1) // self.size)


ALONE = World()
