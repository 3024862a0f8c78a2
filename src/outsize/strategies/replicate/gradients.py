"""Sums gradients over all ranks during backward; parameters keep their names, and the model is not wrapped.

backward   . . p9 p8 | p7 p6 p5 | p4 . . . p0 |
buckets          [0] ----->     |             |      a bucket leaves when its last gradient is there and all
                    [1] ------------->        |      before it have left: every rank sends in the same order
                                [2] ---------------> wait
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from outsize.data.batch import Batch
from outsize.ranks import World
from outsize.strategies.elsewhere import is_here
from outsize.strategies.step import Step, Terms

BUCKET_BYTES = 25 * 2**20  # small enough to leave early, large enough for a link's full speed


def replicated(
    step: Step, model: nn.Module, world: World, *, bucket_bytes: int = BUCKET_BYTES, early: bool = True
) -> Step:
    """Return the step of all ranks together: gradients and shares of loss terms are those of the whole batch.

    Totals of the batch that goes in are those of all ranks (`World.sum`). Only the last part of an optimizer step
    sends; the parts before it add to the gradients that will, and their shares of loss terms are told with its own.
    `early`: while backward still runs, which a step that runs it several times does not allow.
    """
    if world.is_alone:
        return step
    gradients = _Gradients(model, world, bucket_bytes)
    waiting: dict[str, Tensor] = {}  # shares of the parts before

    def run(batch: Batch, *, last: bool) -> Terms:
        if not last:
            for name, share in step(batch, last=False).items():
                waiting[name] = waiting[name] + share if name in waiting else share
            return {name: torch.zeros_like(share) for name, share in waiting.items()}
        before = None if early else step(batch, last=True)
        with gradients.leaving():
            shares = step(batch, last=True) if before is None else before
            own = [share + waiting.get(name, 0) for name, share in shares.items()]
            return dict(zip(shares, gradients.arrived(own), strict=True))

    def run_or_forget(batch: Batch, *, last: bool) -> Terms:
        done = False
        try:
            terms = run(batch, last=last)
            done = not last
            return terms
        finally:
            if not done:  # the step is over, or breaks off and starts over
                waiting.clear()

    return run_or_forget


@dataclass
class _Bucket:
    """Gradients that leave together, in one piece of memory."""

    parameters: list[nn.Parameter]
    num_missing: int = 0  # gradients of this backward that are not there yet
    sent: dist.Work | None = None


@dataclass
class _Gradients:
    """Buckets of a model's gradients, and how far they have left in this backward."""

    model: nn.Module
    world: World
    bucket_bytes: int
    _buckets: list[_Bucket] = field(default_factory=list)
    _place: dict[nn.Parameter, _Bucket] = field(default_factory=dict)
    _hooks: list[RemovableHandle] = field(default_factory=list)
    _next: int = 0  # the first bucket that has not left
    _leaves: bool = False

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Send the gradients of a backward inside as they come."""
        self._look_at_parameters()
        for bucket in self._buckets:
            bucket.num_missing, bucket.sent = len(bucket.parameters), None
        self._next, self._leaves = 0, True
        try:
            yield
        except BaseException:
            for (
                bucket
            ) in self._buckets:  # what was sent holds the group open, and the others would wait in it
                bucket.sent = None
            raise
        finally:
            self._leaves = False

    def arrived(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """Send what is left, wait for all, and return the sums of a step's shares.

        A gradient that no rank has stays None, for an optimizer passes those over; one that a rank lacks is zero there.
        """
        has = [parameter.grad is not None for parameter in self._place]
        while self._next < len(self._buckets):
            self._send(self._buckets[self._next])
        present = torch.tensor(has, dtype=torch.int32)  # of the host: no rank waits for its GPU
        self.world.add_up(present)
        sums = self.add_up(shares)
        for bucket in self._buckets:
            assert bucket.sent is not None
            bucket.sent.wait()
        for parameter, num_ranks in zip(self._place, present.tolist(), strict=True):
            if num_ranks == 0:
                parameter.grad = None
        return sums

    def add_up(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum small tensors over all ranks in one go."""
        device = next(self.model.parameters()).device
        row = torch.cat([each.detach().reshape(-1).to(device, torch.float64) for each in tensors])
        self.world.add_up(row)
        parts = row.split([each.numel() for each in tensors])
        return [part.view(each.shape).to(each.dtype) for part, each in zip(parts, tensors, strict=True)]

    def _look_at_parameters(self) -> None:
        """Cut buckets where what trains has changed; the last layers come first, for their gradients do."""
        wanted = [each for each in self.model.parameters() if each.requires_grad and is_here(each)]
        wanted.reverse()
        if len(wanted) == len(self._place) and all(
            one is other for one, other in zip(wanted, self._place, strict=True)
        ):
            return
        for hook in self._hooks:
            hook.remove()
        self._buckets = [_Bucket(each) for each in _cut(wanted, self.bucket_bytes)]
        self._place = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._hooks = [each.register_post_accumulate_grad_hook(self._came) for each in wanted]

    def _came(self, parameter: Tensor) -> None:
        if not self._leaves:
            return
        self._place[parameter].num_missing -= 1  # type: ignore[index]
        while self._next < len(self._buckets) and self._buckets[self._next].num_missing <= 0:
            self._send(self._buckets[self._next])

    def _send(self, bucket: _Bucket) -> None:
        """Bring a bucket's gradients into one piece of memory, where they stay, and let it go."""
        first = bucket.parameters[0]
        row = torch.empty(
            sum(each.numel() for each in bucket.parameters), dtype=first.dtype, device=first.device
        )
        places = row.split([each.numel() for each in bucket.parameters])
        with torch.no_grad():
            for parameter, place in zip(bucket.parameters, places, strict=True):
                view = place.view(parameter.shape)
                view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
                parameter.grad = view
        bucket.sent = dist.all_reduce(row, group=self.world.group(), async_op=True)
        self._next += 1


def _cut(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cut a row of parameters into stretches of one kind of number and of at most so many bytes."""
    stretches: list[list[nn.Parameter]] = []
    num_bytes = 0
    for parameter in parameters:
        own = parameter.numel() * parameter.element_size()
        if stretches and num_bytes + own <= bucket_bytes and stretches[-1][0].dtype == parameter.dtype:
            stretches[-1].append(parameter)
            num_bytes += own
        else:
            stretches.append([parameter])
            num_bytes = own
    return stretches
