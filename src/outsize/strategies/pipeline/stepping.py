"""The step of a model in stages over several ranks: it is the loop over micro-batches, and runs backward itself."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.errors import PlanError, explain
from outsize.plan.plan import Pipeline
from outsize.plan.simulate import play_planned
from outsize.strategies.pipeline.cutting import Cutout, cut_model
from outsize.strategies.pipeline.draws import StageDraws, state_layout
from outsize.strategies.pipeline.messages import Letter, Mail, Task
from outsize.strategies.pipeline.rules import Later, Rules, rules_of
from outsize.strategies.pipeline.running import Running
from outsize.strategies.pipeline.sending import sent_by
from outsize.strategies.pipeline.shapes import SentLayout
from outsize.strategies.replicate import Share
from outsize.strategies.step import LossParts, LossTerms, Step, Terms


def piped(
    model: nn.Module,
    loss_terms: LossTerms,
    pipeline: Pipeline,
    share: Share,
    *,
    bf16: bool,
) -> Step:
    """Return the step that runs a batch through the stages of a plan, on the ranks of `share.stages`.

    Each of them has the same samples; the loss terms are told to all of them.
    """
    if not isinstance(loss_terms, LossParts):
        found = "losses that run the model themselves, in several passes"
        need = "a task whose model is called once, as those of classes of pixels or pictures"
        raise PlanError(explain("a model cannot be cut into stages", found, need, "leave --stages out"))
    if pipeline.num_ranks != share.stages.size:
        need = f"{pipeline.num_ranks}, one for each part of the plan"
        raise PlanError(explain("ranks do not fit the stages", share.stages.size, need, "plan again"))
    later = Later() if pipeline.schedule == "zero-bubble" else None
    rules = rules_of(share, later)
    stages = _Stages(model, loss_terms, pipeline, share, rules, later, bf16)
    return stages.step


@dataclass
class _Stages:
    """What lasts from step to step: traces, orders of work, names of loss terms."""

    model: nn.Module
    loss_parts: LossParts
    pipeline: Pipeline
    share: Share
    rules: Rules
    later: Later | None
    bf16: bool
    _cutouts: dict[Hashable, Cutout] = field(default_factory=dict)
    _orders: dict[int, list[list[Task]]] = field(default_factory=dict)
    _terms: dict[Hashable, list[str]] = field(default_factory=dict)

    def step(self, batch: Batch, *, last: bool) -> Terms:  # noqa: ARG002 - replicas want to know
        """Run a batch."""
        places = self.share.cut(batch)
        parts = [self.share.take(batch, place) for place in places]
        key = int(torch.randint(1 << 62, (), device="cpu")) if len(parts) > 1 else None
        cutouts = [self._cutout(part) for part in parts]
        orders, device = self._order(len(parts)), batch.images.device
        ranks = [stage.rank for stage in self.pipeline.stages]
        recomputes = [stage.recomputes for stage in self.pipeline.stages]
        state = state_layout(device)

        def layout_of(message: Letter) -> SentLayout:
            return state if message.kind == "state" else cutouts[message.micro].streams[message.name].layout

        def seed(micro: int) -> None:
            if key is not None:
                torch.manual_seed(key + micro)

        def begin_part(micro: int) -> None:
            self.share.now = micro

        mail = Mail(self.share.stages, device, orders, sent_by(cutouts, ranks), layout_of)
        rank, watch = self.share.stages.rank, self.share.watch
        draws = StageDraws(device, ranks, rank, recomputes, seed, mail)
        running = Running(
            self.model, self.loss_parts, parts, cutouts, ranks, rank, recomputes, begin_part, mail, draws,
            self.later, self.bf16, time.perf_counter if watch is None else watch.now,
        )  # fmt: skip
        shares = running.run(orders[rank])
        told = self._told(shares, self._about(parts[0]), device)
        if watch is not None:
            watch.done(running.seen)
        return told

    def _order(self, num_parts: int) -> list[list[Task]]:
        if num_parts not in self._orders:
            played = play_planned(self.pipeline, num_parts)
            self._orders[num_parts] = [list(played.order(rank)) for rank in range(self.pipeline.num_ranks)]
        return self._orders[num_parts]

    def _cutout(self, part: Batch) -> Cutout:
        key = self._about(part)
        if key not in self._cutouts:
            device = part.images.device
            cut = [stage.begins for stage in self.pipeline.stages]
            with torch.random.fork_rng([device] if device.type == "cuda" else []):  # tracing draws, too
                inputs = self.loss_parts.inputs(self.model, part)
                self._cutouts[key] = cut_model(self.model, inputs, cut, self.rules, bf16=self.bf16)
        return self._cutouts[key]

    def _about(self, part: Batch) -> Hashable:
        """Return all that a trace depends on."""
        modes = tuple(module.training for module in self.model.modules())
        trains = tuple(each.requires_grad for each in self.model.parameters())
        return part.images.shape, part.images.dtype, modes, trains, getattr(self.model, "output", None)

    def _told(self, shares: dict[str, Tensor], about: Hashable, device: torch.device) -> Terms:
        """Tell all ranks the shares that the one with the last stage has found."""
        stages = self.share.stages
        if about not in self._terms:
            self._terms[about] = next(names for names in stages.gather([*shares]) if names)
        names = self._terms[about]
        zero = torch.zeros((), dtype=torch.float64, device=device)
        row = torch.stack([shares[name].double() if name in shares else zero for name in names])
        return dict(zip(names, stages.add_up(row), strict=True))
