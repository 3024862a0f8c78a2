"""One step of a pipeline as one rank runs it: its tasks one after another, in the order that was played out.

forward    values come, a program runs, values go; what backward needs stays
recompute  a stage that kept only what came in runs again
backward   gradients come from who has read the values, others go to who has made them
weights    gradients of weights that were left for later
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from outsize.data.batch import Batch
from outsize.strategies.pipeline.cutting import Cutout, SentStream, StageProgram, Taken
from outsize.strategies.pipeline.draws import StageDraws
from outsize.strategies.pipeline.messages import Letter, Mail, Task
from outsize.strategies.pipeline.rules import Later
from outsize.strategies.step import LossParts

Seen = tuple[
    Task, float, float
]  # a task, and when the host began it, once what it needs was there, and ended it
Root = tuple[str, GradientEdge]  # a stream and where its gradient goes in; "" for the loss


@dataclass
class AwaitsBackward:
    """What a stage keeps of a micro-batch from forward to backward."""

    leaves: dict[str, Tensor]  # streams that came in
    roots: list[Root]
    again: dict[str, Tensor] | None = None  # buffers as they were, of a stage that has yet to run again


@dataclass
class Running:
    """The step of one rank."""

    model: nn.Module
    loss_parts: LossParts
    parts: Sequence[Batch]
    cutouts: Sequence[Cutout]  # of each micro-batch
    ranks: Sequence[int]  # of each stage
    rank: int
    recomputes: Sequence[bool]  # of each stage
    begin_part: Callable[[int], None]
    mail: Mail
    draws: StageDraws
    later: Later | None
    bf16: bool
    clock: Callable[[], float] = time.perf_counter
    shares: dict[str, Tensor] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    _held: dict[tuple[int, int], AwaitsBackward] = field(default_factory=dict)
    _values: dict[tuple[str, int], list[Any]] = field(default_factory=dict)  # and how many are to read each
    _gradients: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    _waiting: dict[tuple[int, int], list[Callable[[], None]]] = field(default_factory=dict)
    _waited_s: float = 0.0  # in the task that runs, for messages

    def run(self, order: Sequence[Task]) -> dict[str, Tensor]:
        """Run all tasks, and return the shares of loss terms; they are of the rank with the last stage."""
        do = {
            "forward": self._forward,
            "recompute": self._recompute,
            "backward": self._backward,
            "weights": self._weights,
        }
        for number, (doing, stage, micro) in enumerate(order):
            for task in order[number : number + 2]:  # what the next one needs comes meanwhile
                for message in self._needed(task):
                    self.mail.ask(message)
            began_s, self._waited_s = self.clock(), 0.0
            do[doing](stage, micro)
            self.seen.append(((doing, stage, micro), began_s + self._waited_s, self.clock()))
        self.mail.close()
        return self.shares

    def _needed(self, task: Task) -> list[Letter]:
        doing, stage, micro = task
        cutout = self.cutouts[micro]
        if doing == "forward":
            came = [
                Letter("value", name, 0, micro)
                for name in _streams(cutout, stage)
                if not self._is_own(cutout, name)
            ]
            return came + self.draws.needed(cutout, stage, micro)
        if doing == "backward":
            return [
                Letter("gradient", name, reader, micro)
                for name in cutout.programs[stage].gives
                for reader in cutout.streams[name].read
                if cutout.streams[name].layout.requires_grad and self.ranks[reader] != self.rank
            ]
        return []

    def _is_own(self, cutout: Cutout, name: str) -> bool:
        return self.ranks[cutout.streams[name].made] == self.rank

    def _forward(self, stage: int, micro: int) -> None:
        cutout = self.cutouts[micro]
        program = cutout.programs[stage]
        leaves = {
            name: self._value(cutout.streams[name], micro).requires_grad_(
                cutout.streams[name].layout.requires_grad
            )
            for name in _streams(cutout, stage)
        }
        self.draws.begin(cutout, stage, micro)
        again = self.recomputes[stage]
        before = {name: each.clone() for name, each in self._buffers(program)} if again else None
        with torch.no_grad() if again else nullcontext():
            made, roots = self._run(cutout, stage, micro, leaves)
        self.draws.end(cutout, stage, micro)
        self._held[stage, micro] = AwaitsBackward(leaves, roots, before)
        for name, tensor in zip(program.gives, made, strict=True):
            self._give(cutout.streams[name], micro, tensor)

    def _run(
        self,
        cutout: Cutout,
        stage: int,
        micro: int,
        leaves: dict[str, Tensor],
        again: dict[str, Tensor] | None = None,
    ) -> tuple[Sequence[Any], list[Root]]:
        """Run a program, and the losses behind the last one; `again` with these buffers in the place of the model's."""
        program, part = cutout.programs[stage], self.parts[micro]
        self.begin_part(micro)
        device = part.images.device.type
        with torch.autocast(device, torch.bfloat16) if self.bf16 else nullcontext():
            inputs = self._inputs(program, part)
            made = program.run(*(self._given(each, inputs, leaves, again or {}) for each in program.takes))
            if stage == len(cutout.programs) - 1:
                sums = self.loss_parts.sums(self.model, cutout.answered(made), part)
                shares = {name: value / part.totals[name] for name, value in sums.items()}
                total = torch.stack(list(shares.values())).sum()
                if again is None:
                    self._add_shares(shares)
                return (), [("", get_gradient_edge(total))] if total.requires_grad else []
        edges = [
            (name, get_gradient_edge(tensor))
            for name, tensor in zip(program.gives, made, strict=True)
            if tensor.requires_grad
        ]
        return made, edges

    def _inputs(self, program: StageProgram, part: Batch) -> list[Any]:
        if not any(each.kind == "input" for each in program.takes):
            return []
        return pytree.tree_leaves(self.loss_parts.inputs(self.model, part))

    def _given(
        self, taken: Taken, inputs: list[Any], leaves: dict[str, Tensor], instead: dict[str, Tensor]
    ) -> Any:
        match taken.kind:
            case "input":
                value = inputs[taken.what]
            case "parameter":
                return self.model.get_parameter(taken.what)
            case "buffer":
                found = instead.get(taken.what)
                return self.model.get_buffer(taken.what) if found is None else found
            case "stream":
                value = leaves[taken.what]
            case _:
                return taken.what
        return value.clone() if taken.is_written else value

    def _buffers(self, program: StageProgram) -> list[tuple[str, Tensor]]:
        names = [each.what for each in program.takes if each.kind == "buffer"]
        return [(name, self.model.get_buffer(name)) for name in names]

    def _add_shares(self, shares: dict[str, Tensor]) -> None:
        for name, share in shares.items():
            own = share.detach()
            self.shares[name] = self.shares[name] + own if name in self.shares else own

    def _recompute(self, stage: int, micro: int) -> None:
        held = self._held[stage, micro]
        assert held.again is not None
        cutout = self.cutouts[micro]
        with self.draws.again(stage, micro):
            # a buffer that no longer counts takes what the layers write: the model's own have it already
            _, held.roots = self._run(cutout, stage, micro, held.leaves, held.again)
        held.again = None

    def _backward(self, stage: int, micro: int) -> None:
        if self._held[stage, micro].again is not None:
            self._recompute(stage, micro)
        held, cutout = self._held.pop((stage, micro)), self.cutouts[micro]
        arrived = {
            name: self._gradient(cutout.streams[name], micro)
            for name in cutout.programs[stage].gives
            if cutout.streams[name].layout.requires_grad
        }
        edges = [edge for _, edge in held.roots]
        grads = [None if name == "" else arrived[name] for name, _ in held.roots]
        if edges:
            torch.autograd.backward(edges, grads)
        if self.later is not None:
            self._waiting[stage, micro] = self.later.taken()
        for name, leaf in held.leaves.items():
            if leaf.requires_grad:
                stream = cutout.streams[name]
                grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                to = self.ranks[stream.made]
                if to == self.rank:
                    self._gradients.setdefault((name, micro), []).append(grad)
                else:
                    self.mail.send(to, Letter("gradient", name, stage, micro), grad)

    def _weights(self, stage: int, micro: int) -> None:
        for find in self._waiting.pop((stage, micro)):
            find()

    def _give(self, stream: SentStream, micro: int, tensor: Tensor) -> None:
        readers = [self.ranks[each] for each in stream.read]
        for to in sorted(set(readers) - {self.rank}):
            self.mail.send(to, Letter("value", stream.name, 0, micro), tensor)
        if self.rank in readers:
            self._values[stream.name, micro] = [tensor.detach(), readers.count(self.rank)]

    def _value(self, stream: SentStream, micro: int) -> Tensor:
        key = stream.name, micro
        if key not in self._values:
            num = sum(self.ranks[each] == self.rank for each in stream.read)
            self._values[key] = [self._came(Letter("value", stream.name, 0, micro)), num]
        kept = self._values[key]
        kept[1] -= 1
        if not kept[1]:
            del self._values[key]
        value: Tensor = kept[0].detach()
        return value

    def _came(self, message: Letter) -> Tensor:
        began_s = self.clock()
        tensor = self.mail.take(message)
        self._waited_s += self.clock() - began_s
        return tensor

    def _gradient(self, stream: SentStream, micro: int) -> Tensor:
        """Return the gradient of a value: the sum over those who have read it."""
        found = self._gradients.pop((stream.name, micro), [])
        for reader in reversed(stream.read):
            if self.ranks[reader] != self.rank:
                found.append(self._came(Letter("gradient", stream.name, reader, micro)))
        total = found[0]
        for each in found[1:]:
            total = total + each
        return total


def _streams(cutout: Cutout, stage: int) -> list[str]:
    return [each.what for each in cutout.programs[stage].takes if each.kind == "stream"]
