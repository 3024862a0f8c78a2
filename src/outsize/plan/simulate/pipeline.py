"""Plays a step in stages out, micro-batch by micro-batch: when each rank runs what, and when it waits.

    rank 0  |F0|F1|F2|F3|           |B0 |B1 |B2 |B3 |      GPipe: all forward, then all backward; waits in between
    rank 1     |F0|F1|F2|F3|     |B0 |B1 |B2 |B3 |
    rank 2        |F0|F1|F2|F3|B0 |B1 |B2 |B3 |            1F1B: backward as soon as there is one

A rank never waits while it may run something; of what it may, backward goes first, or what has the longest way to go,
then the later stage. Orders of named schedules follow from how many micro-batches a stage may have on their way. What
comes out is an order that can be carried out as it stands, for it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from outsize.plan.partition import Chain, Partition

__all__ = ["USUAL", "Beat", "Order", "Played", "ScheduleName", "StageWork", "Stages", "play", "stages_of"]

ScheduleName = Literal["gpipe", "1f1b", "zero-bubble"]
Doing = Literal["forward", "recompute", "backward", "weights"]
# Of backward, what finds gradients of weights, which nobody waits for: a convolution's two products are equally large.
_WEIGHTS_SHARE = 0.5
_FIRST = {"backward": 0, "forward": 1, "recompute": 2, "weights": 3}


@dataclass(frozen=True)
class StageWork:
    """A stage on its rank: seconds for one micro-batch, and the bytes that one keeps until backward."""

    rank: int
    forward_s: float
    backward_s: float
    recompute_s: float = 0.0
    kept_bytes: int = 0  # for each micro-batch on its way
    fixed_bytes: int = 0
    weights_s: float | None = (
        None  # of backward, what finds gradients of weights; None: not known, about half
    )
    split_s: float = 0.0  # that backward takes longer where these are found apart

    @property
    def later_s(self) -> float:
        """Time of what backward leaves for later where it is split."""
        own_s = self.backward_s * _WEIGHTS_SHARE if self.weights_s is None else self.weights_s
        return own_s + self.split_s


@dataclass(frozen=True)
class Order:
    """What goes first where a rank may choose, and how many micro-batches may be on their way."""

    # So many more than there are stages behind one's own; None: as many as there are ranks where each has several
    # stages, for one of them runs while another waits, else none.
    ahead: int | None = None
    longest_first: bool = False  # what has the longest way to go, not backward
    last_first: bool = False  # backward of the last micro-batch
    keeps_last: bool = False  # what the last micro-batch saved, also where a stage recomputes


USUAL = Order()


@dataclass(frozen=True)
class Stages:
    """Stages of a pipeline, and how long a message takes from one to another; gradients take as long back."""

    works: tuple[StageWork, ...]
    messages: Mapping[tuple[int, int], float] = field(default_factory=dict)
    copies_overlap: bool = True

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return 1 + max(work.rank for work in self.works)

    def sent_s(self, one: int, other: int) -> float:
        """Return the time of a message; on one rank nothing is sent."""
        return 0.0 if self.works[one].rank == self.works[other].rank else self.messages.get((one, other), 0.0)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each one reads from."""
        row = {(number - 1, number) for number in range(1, len(self.works))}
        ways = sorted(row | set(self.messages))
        return tuple(tuple(one for one, other in ways if other == each) for each in range(len(self.works)))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The stages that read from each one."""
        pairs = [(one, other) for other, each in enumerate(self.sources) for one in each]
        return tuple(
            tuple(other for one, other in pairs if one == number) for number in range(len(self.works))
        )


@dataclass(frozen=True)
class Beat:
    """A rank at work on one micro-batch of a stage."""

    rank: int
    stage: int
    micro: int
    doing: Doing
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Played:
    """A step as it was played out."""

    beats: tuple[Beat, ...]
    stages: Stages

    @cached_property
    def step_s(self) -> float:
        """When the last rank is done."""
        return max(beat.end_s for beat in self.beats)

    def busy_s(self, rank: int) -> float:
        """Return how long a rank computes."""
        return sum(beat.end_s - beat.start_s for beat in self.beats if beat.rank == rank)

    @property
    def idle_share(self) -> float:
        """Share of the time of all ranks in which they wait."""
        num = self.stages.num_ranks
        return 1 - sum(map(self.busy_s, range(num))) / (num * self.step_s)

    def order(self, rank: int) -> list[tuple[Doing, int, int]]:
        """Return what a rank does, one after another: what, of which stage, for which micro-batch."""
        own = sorted((beat for beat in self.beats if beat.rank == rank), key=lambda beat: beat.start_s)
        return [(beat.doing, beat.stage, beat.micro) for beat in own]

    def peaks(self) -> list[int]:
        """Return the most that each rank holds: weights, and what micro-batches on their way keep."""
        found = []
        for rank in range(self.stages.num_ranks):
            works = [work for work in self.stages.works if work.rank == rank]
            held = peak = sum(work.fixed_bytes for work in works)
            freed = "weights" if any(beat.doing == "weights" for beat in self.beats) else "backward"
            for doing, stage, _ in self.order(rank):
                held += {"forward": 1, freed: -1}.get(doing, 0) * self.stages.works[stage].kept_bytes
                peak = max(peak, held)
            found.append(peak)
        return found


def stages_of(chain: Chain, partition: Partition, num_ranks: int | None = None) -> Stages:
    """Return the stages of a partition as they are played out; skips go straight to who reads them.

    On fewer ranks than it was cut for, stages go round them: interleaved.
    """
    works = []
    for stage in partition.stages:
        state, saved = (of(stage.first, stage.end) for of in (chain.state_bytes, chain.saved_bytes))
        inward = chain.crossing[stage.first - 1] if stage.first else 0
        again_s = stage.forward_s if stage.recomputes else 0.0
        kept, fixed = (inward, state + saved) if stage.recomputes else (saved, state)
        rank = stage.rank % (num_ranks or partition.terms.num_ranks)
        backward_s, later = stage.backward_s - again_s, chain.later_s(stage.first, stage.end)
        works.append(StageWork(rank, stage.forward_s, backward_s, again_s, kept, fixed, *later))
    terms = partition.terms
    messages = {way: terms.message_s(size) for way, size in chain.messages(partition.owner).items()}
    return Stages(tuple(works), messages, terms.copies_overlap)


def play(stages: Stages, num_micro: int, schedule: ScheduleName = "1f1b", order: Order = USUAL) -> Played:
    """Play one step out."""
    play_ = _Play(stages, num_micro, schedule, order)
    while True:
        ready = [each for rank in range(stages.num_ranks) if (each := play_.next_of(rank)) is not None]
        if not ready:
            return Played(tuple(play_.beats), stages)
        play_.run(min(ready)[-1])


_Task = tuple[Doing, int, int]
_Choice = tuple[float, float, int, int, _Task]  # start, then what goes first


class _Play:
    """What has run so far, and what each rank may run next."""

    def __init__(self, stages: Stages, num_micro: int, schedule: ScheduleName, order: Order) -> None:
        self.stages, self.num_micro, self.schedule, self.order = stages, num_micro, schedule, order
        self.beats: list[Beat] = []
        self._free = [0.0] * stages.num_ranks
        self._links: dict[tuple[int, int], float] = {}
        self._ended: dict[_Task, float] = {}
        self._came: dict[
            tuple[Doing, int, int, int], float
        ] = {}  # to a stage, from a stage, of a micro-batch
        self._counts = {doing: [0] * len(stages.works) for doing in _FIRST}
        self._left_s = _left_s(stages.works) if order.longest_first else {}
        self._own = [
            [number for number, work in enumerate(stages.works) if work.rank == rank]
            for rank in range(stages.num_ranks)
        ]

    def next_of(self, rank: int) -> _Choice | None:
        """Return what a rank runs next, and when; None where it has to wait for others, or is done."""
        found: list[_Choice] = []
        for stage in self._own[rank]:
            for task in self._tasks(stage, rank):
                ready_s = self._ready_s(task)
                if ready_s is not None:
                    start_s = max(self._free[rank], ready_s)
                    first = -self._left_s[task[:2]] if self.order.longest_first else _FIRST[task[0]]
                    found.append((start_s, first, -stage, rank, task))
        return min(found, default=None)

    def run(self, task: _Task) -> None:
        """Run a task, and send on what it makes."""
        choice = self.next_of(self.stages.works[task[1]].rank)
        assert choice is not None
        doing, stage, micro = task
        rank, start_s = self.stages.works[stage].rank, choice[0]
        sends = self._sends(doing, stage)
        waits_s = 0.0 if self.stages.copies_overlap else sum(each for _, each in sends)
        end_s = start_s + self._seconds(task) + waits_s + self._receives_s(doing, stage)
        self.beats.append(Beat(rank, stage, micro, doing, start_s, end_s))
        self._free[rank] = self._ended[task] = end_s
        self._counts[doing][stage] += 1
        for other, message_s in sends:
            way = rank, self.stages.works[other].rank
            arrives_s = end_s
            if message_s and self.stages.copies_overlap:
                arrives_s = max(end_s, self._links.get(way, 0.0)) + message_s
                self._links[way] = arrives_s
            self._came[doing, other, stage, micro] = arrives_s

    def _tasks(self, stage: int, rank: int) -> Iterable[_Task]:
        ran = {doing: counts[stage] for doing, counts in self._counts.items()}
        on_way = ran["forward"] - ran["backward"]
        if ran["forward"] < self.num_micro and on_way < self._most_on_way(stage):
            yield "forward", stage, ran["forward"]
        turned = self.schedule != "gpipe" or all(
            self._counts["forward"][each] == self.num_micro for each in self._own[rank]
        )
        if turned and ran["backward"] < self.num_micro:
            micro = self._backward_micro(ran["backward"])
            yield "backward", stage, micro
            if self._recomputes(stage, micro) and ("recompute", stage, micro) not in self._ended:
                yield "recompute", stage, micro
        if self.schedule == "zero-bubble" and ran["weights"] < ran["backward"]:
            yield "weights", stage, self._backward_micro(ran["weights"])

    def _most_on_way(self, stage: int) -> int:
        num, ahead = len(self.stages.works), self.order.ahead
        if self.schedule == "gpipe":
            return self.num_micro
        if ahead is None:
            ahead = self.stages.num_ranks if num > self.stages.num_ranks else 0
        return num - stage + ahead

    def _backward_micro(self, number: int) -> int:
        return self.num_micro - 1 - number if self.order.last_first else number

    def _recomputes(self, stage: int, micro: int) -> bool:
        last = self.order.keeps_last and micro == self.num_micro - 1
        return self.stages.works[stage].recompute_s > 0 and not last

    def _ready_s(self, task: _Task) -> float | None:
        """Return when all that a task needs is there; None where some of it has not run."""
        doing, stage, micro = task
        needed: list[float | None] = []
        if doing == "forward":
            needed += [self._came.get((doing, stage, each, micro)) for each in self.stages.sources[stage]]
        elif doing == "weights":
            needed.append(self._ended.get(("backward", stage, micro)))
        else:
            needed.append(self._ended.get(("forward", stage, micro)))
        if doing == "backward":
            needed += [self._came.get((doing, stage, each, micro)) for each in self.stages.readers[stage]]
            if self._recomputes(stage, micro):
                needed.append(self._ended.get(("recompute", stage, micro)))
        there = [each for each in needed if each is not None]
        return max(there, default=0.0) if len(there) == len(needed) else None

    def _seconds(self, task: _Task) -> float:
        doing, stage, _ = task
        work = self.stages.works[stage]
        if doing == "forward":
            return work.forward_s
        if doing == "recompute":
            return work.recompute_s
        if doing == "weights":
            return work.later_s
        is_split = self.schedule == "zero-bubble"
        return work.backward_s + work.split_s - work.later_s if is_split else work.backward_s

    def _sends(self, doing: Doing, stage: int) -> Sequence[tuple[int, float]]:
        if doing == "forward":
            return [(other, self.stages.sent_s(stage, other)) for other in self.stages.readers[stage]]
        if doing == "backward":
            return [(other, self.stages.sent_s(other, stage)) for other in self.stages.sources[stage]]
        return ()

    def _receives_s(self, doing: Doing, stage: int) -> float:
        if self.stages.copies_overlap or doing not in ("forward", "backward"):
            return 0.0
        if doing == "forward":
            return math.fsum(self.stages.sent_s(each, stage) for each in self.stages.sources[stage])
        return math.fsum(self.stages.sent_s(stage, each) for each in self.stages.readers[stage])


def _left_s(works: Sequence[StageWork]) -> dict[tuple[Doing, int], float]:
    """Return how long a micro-batch takes from the end of each task to its last backward."""
    found: dict[tuple[Doing, int], float] = {}
    left_s = 0.0
    for stage, work in enumerate(works):
        found["weights", stage], found["backward", stage] = -1.0, left_s
        left_s += work.backward_s
        found["recompute", stage] = left_s
    for stage in reversed(range(len(works))):
        found["forward", stage] = left_s
        left_s += works[stage].forward_s
    return found
