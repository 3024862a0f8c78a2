"""The step of a training: as it is planned, over all ranks, and by a tighter plan where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.plan import Plan
from outsize.ranks import World
from outsize.runs import RunFolder
from outsize.session.watching import WatchedStep
from outsize.tiles.window import Tile

if TYPE_CHECKING:
    from outsize.planning.jobs import Prepared
    from outsize.strategies.compose import LossTerms, Step
    from outsize.strategies.swap import Meter


class Stepping:
    """How steps are run now; lives as long as the loop."""

    def __init__(
        self, job: Job, prepared: Prepared, run: RunFolder, world: World, tell: Callable[[str], None]
    ) -> None:
        """Deal each batch out over ranks, and let the model's layers see all of it."""
        from outsize.models import num_inputs
        from outsize.strategies.cudagraph import Recordings
        from outsize.strategies.pipeline import share_among
        from outsize.strategies.replicate import look_across, share_out
        from outsize.strategies.spatial import refuse_apart

        self.prepared, self.recordings = prepared, Recordings()
        self._job, self._run, self._world, self._tell = job, run, world, tell
        self._share = None
        if not world.is_alone:
            pipeline = prepared.train_plan.pipeline
            if pipeline is not None:  # which sees to norms and dropout itself
                share = share_among(
                    world, pipeline, job.train.batch, local_norm=prepared.where.sharing.local_norm
                )
                watch = WatchedStep(lambda: self.prepared.train_plan.pipeline, share, run.schedule)
                self._share = replace(share, watch=watch)
                return
            spatial = prepared.train_plan.spatial
            each = 1 if spatial is None else spatial.num
            num_parts = prepared.train_plan.micro_batches or 1
            self._share = share_out(world, job.train.batch, num_parts, each)
            if spatial is not None and spatial.exchanges:
                channels = num_inputs(prepared.model, len(prepared.bands))
                refuse_apart(prepared.model, spatial, world, channels)
            look_across(prepared.model, self._share, local_norm=prepared.where.sharing.local_norm)

    @property
    def numbers(self) -> Sequence[int] | None:
        """Which samples of each batch are this rank's; None: all."""
        return None if self._share is None else self._share.numbers

    @property
    def tile(self) -> Tile | None:
        """Which part of each picture is this rank's; None: all."""
        spatial = self.prepared.train_plan.spatial
        return None if spatial is None else spatial.tiles()[self._world.rank % spatial.num]

    def composed(self, loss_terms: LossTerms, meter: Meter) -> Step:
        """Return the step of the loop."""
        from outsize.planning.jobs import tightening
        from outsize.strategies.compose import compose
        from outsize.strategies.steps import recovering

        prepared = self.prepared
        composed = partial(compose, prepared.model, loss_terms, bf16=prepared.where.bf16, share=self._share)
        make_step = partial(composed, tell=self._tell, meter=meter, recordings=self.recordings)
        tighten = tightening(self._job, prepared, make_step, self.changed, self._world)
        return recovering(make_step(prepared.train_plan), prepared.model, tighten, self._forget, self._world)

    def changed(self, plan: Plan, why: str) -> None:
        """Go on by another plan."""
        self.prepared = self.prepared.with_plan(plan)
        self.recordings.let_go()
        self._tell(why)
        if self._share is not None and plan.purpose == "train":
            self._share.recut(plan.micro_batches or 1)
        if self._world.is_owner:
            self.prepared.record(self._run)  # a resumed training goes on with its steps

    def _forget(self) -> None:
        """Let go of what a step that failed has left in others' hands."""
        from outsize.strategies.offload import begin_anew

        self.recordings.let_go()
        begin_anew(self.prepared.model)
