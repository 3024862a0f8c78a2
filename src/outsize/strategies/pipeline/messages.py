"""What ranks of a pipeline send one another: values forward, gradients back, the state of random numbers along.

Each way from a rank to another is a row of messages in the order in which the first one sends them. That order follows
from the order of work, which all ranks know; so the other one takes them in just that order, whatever it waits for:
NCCL knows no names of messages. Ways up and down are groups of their own: what goes up never waits for what comes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.ranks import World
from outsize.strategies.pipeline.shapes import SentLayout

Task = tuple[str, int, int]  # what is done, in which stage, for which micro-batch


class Letter(NamedTuple):
    """A tensor on its way."""

    kind: str  # "value", "gradient", "state"
    name: str  # of the stream
    stage: int  # that a gradient comes from, or a state goes to
    micro: int


Sent = Callable[[Task], Iterable[tuple[int, Letter]]]  # what a task sends, and to which rank


@dataclass
class _Way:
    """Messages from one rank to this one, in order, and how many of them were asked for."""

    messages: list[Letter] = field(default_factory=list)
    places: dict[Letter, int] = field(default_factory=dict)
    num_asked: int = 0


class Mail:
    """Messages of one step, as one rank sends and takes them."""

    def __init__(
        self,
        world: World,
        device: torch.device,
        orders: Sequence[Sequence[Task]],
        sent: Sent,
        layout: Callable[[Letter], SentLayout],
    ) -> None:
        self._world, self._device, self._layout = world, device, layout
        by_host = device.type != "cpu" and not (world.meeting is not None and world.meeting.own_gpus)
        self._on = torch.device("cpu") if by_host else device
        self._groups = world.group("up"), world.group("down")  # now, for all ranks come by here
        self._ways: dict[int, _Way] = {}
        self._tags: dict[tuple[int, Letter], int] = {}
        for rank, order in enumerate(orders):
            counts: dict[int, int] = {}
            for task in order:
                for to, message in sent(task):
                    number = counts[to] = counts.get(to, -1) + 1
                    if rank == world.rank:
                        self._tags[to, message] = number
                    elif to == world.rank:
                        way = self._ways.setdefault(rank, _Way())
                        way.places[message] = number
                        way.messages.append(message)
        self._came: dict[Letter, tuple[dist.Work, Tensor]] = {}
        self._left: list[tuple[dist.Work, Tensor]] = []

    def ask(self, message: Letter) -> None:
        """Get ready for a message, and for all that are sent before it."""
        for rank, way in self._ways.items():
            place = way.places.get(message)
            while place is not None and way.num_asked <= place:
                each = way.messages[way.num_asked]
                packed = self._layout(each).empty(self._device_of(each))
                peer, group = self._world.rank_of_all(rank), self._group(rank, self._world.rank)
                work = dist.irecv(packed, peer, group, tag=way.num_asked)
                assert work is not None
                self._came[each] = work, packed
                way.num_asked += 1

    def take(self, message: Letter) -> Tensor:
        """Wait for a message."""
        self.ask(message)
        work, packed = self._came.pop(message)
        work.wait()
        there = packed if message.kind == "state" else packed.to(self._device)
        return self._layout(message).unpacked(there)

    def send(self, to: int, message: Letter, tensor: Tensor) -> None:
        """Send a tensor; what has arrived of those before is let go."""
        self._left = [each for each in self._left if not each[0].is_completed()]
        packed = self._layout(message).packed(tensor).to(self._device_of(message))
        peer, group = self._world.rank_of_all(to), self._group(self._world.rank, to)
        work = dist.isend(packed, peer, group, tag=self._tags[to, message])
        assert work is not None
        self._left.append((work, packed))

    def close(self) -> None:
        """Wait until all has arrived."""
        for work, _ in self._left:
            work.wait()
        self._left.clear()

    def _device_of(self, message: Letter) -> torch.device:
        return torch.device("cpu") if message.kind == "state" else self._on

    def _group(self, one: int, other: int) -> dist.ProcessGroup | None:
        return self._groups[one > other]
