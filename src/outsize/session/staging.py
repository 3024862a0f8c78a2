"""What each rank holds of a model and of its optimizer's state, and how the owner comes by all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.plan import Pipeline, Plan
from outsize.ranks import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outsize.planning.jobs import Prepared
    from outsize.strategies.pipeline import WeightParts


def ranks_of_model(plan: Plan) -> int:
    """Return over how many ranks the model is spread; all of them have the same samples."""
    return 1 if plan.pipeline is None else plan.pipeline.num_ranks


class Held:
    """What this rank holds of the model and of the optimizer's state: all, unless the plan has stages or shards."""

    def __init__(self, job: Job, prepared: Prepared, world: World) -> None:
        self._parts: WeightParts | None = None
        self.replicas = world  # ranks that hold the same
        self._shards = world if prepared.train_plan.replicate is not None else None
        pipeline = prepared.train_plan.pipeline
        if pipeline is not None:
            from outsize.strategies.pipeline import replicas_among

            self.replicas = replicas_among(world, pipeline)
            self._parts = _parts_of(job, prepared, pipeline, world)

    def place(self, prepared: Prepared) -> None:
        """Move the model, or this rank's part of it, to where it trains."""
        from outsize.session.hosting import place

        if self._parts is None:
            place(prepared.model, prepared.train_plan, prepared.device, bf16=prepared.where.bf16)
        else:
            self._parts.hold(prepared.device)

    def whole(self, device: torch.device | None = None) -> AbstractContextManager[None]:
        """Let the owner have the whole model inside, on a device or the host; every rank comes by here."""
        if self._parts is None:
            return nullcontext()
        return self._parts.whole() if device is None else self._parts.whole(device)

    def all_of(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return on the owner the optimizer's tensors of all ranks; every rank comes by here."""
        held = self._shards or self._parts
        return tensors if held is None else {**tensors, **held.collected(tensors)}

    def kept_of(self, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], bool]:
        """Return what says of a weight whether this rank keeps the optimizer's state of it."""
        from outsize.strategies.elsewhere import is_here
        from outsize.strategies.replicate import share_state

        return is_here if self._shards is None else share_state(optimizer, self._shards)


def _parts_of(job: Job, prepared: Prepared, pipeline: Pipeline, world: World) -> WeightParts:
    """Trace the model for each output that a phase trains, and see which stages use which weights."""
    from outsize.planning.traced import traced_for
    from outsize.strategies.pipeline import WeightParts, cut_traced, stages_among

    model, num_samples = prepared.model, prepared.train_plan.batch
    holders: dict[str, set[int]] = {}
    for output in dict.fromkeys(phase.output for phase in job.train.all_phases()):
        if hasattr(model, "outputs"):
            model.output = output or model.usual_output  # type: ignore[assignment]
        inputs, traced = traced_for(job, model, len(prepared.bands), num_samples)
        cut = [stage.begins for stage in pipeline.stages]
        found = cut_traced(traced, model, inputs, cut, {}, bf16=prepared.where.bf16)
        for name, stage in found.owners.items():
            holders.setdefault(name, set()).add(pipeline.stages[stage].rank)
    return WeightParts(model, holders, stages_among(world, pipeline))
