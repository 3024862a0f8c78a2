"""One step of a training in stages as it was: when each rank did what, beside what was predicted; in schedule.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.plan.plan import Pipeline
from outsize.plan.simulate import play_planned
from outsize.runs import write_json

if TYPE_CHECKING:
    from outsize.strategies.replicate import Share

_SHOWN = (
    3  # of a training's steps, the one that is kept: the first ones get memory, and libraries choose kernels
)
Seen = tuple[tuple[str, int, int], float, float]


@dataclass
class WatchedStep:
    """Keeps what one step did; all ranks of a pipeline tell the first, and the owner writes it down."""

    pipeline: Callable[[], Pipeline | None]  # as it is planned now
    share: Share
    path: Path
    _num: int = field(default=0, init=False)

    def now(self) -> float:
        """Tell the time, of the step that is kept once the GPU is done with all that it was given."""
        import torch

        if self._num == _SHOWN - 1 and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.time()  # of the whole machine; a host's clock and another's are some ms apart

    def done(self, seen: Sequence[Seen]) -> None:
        """Take what this rank did in a step."""
        self._num += 1
        pipeline = self.pipeline()
        if self._num != _SHOWN or pipeline is None:
            return
        ranks = self.share.stages.gather(list(seen))
        if self.share.world.is_owner and self.share.stages.is_owner:
            write_json(self.path, _told(pipeline, ranks, len(self.share.sizes[0])))


def _told(pipeline: Pipeline, ranks: Sequence[Sequence[Seen]], num_micro: int) -> dict[str, Any]:
    first_s = min(began_s for each in ranks for _, began_s, _ in each)
    measured = [
        [rank, doing, micro, began_s - first_s, ended_s - first_s]
        for rank, each in enumerate(ranks)
        for (doing, _, micro), began_s, ended_s in each
    ]
    beats = play_planned(pipeline, num_micro).beats
    return {
        "step": _SHOWN,
        "schedule": pipeline.schedule,
        "num_ranks": pipeline.num_ranks,
        "num_micro": num_micro,
        "predicted": [[each.rank, each.doing, each.micro, each.start_s, each.end_s] for each in beats],
        "measured": measured,
    }
