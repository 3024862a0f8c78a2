"""What a training saves, which of it is good, and what its last line says of it where it ends before its time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import DivergedError
from outsize.ranks import World
from outsize.runs import RunFolder
from outsize.session.among import evened
from outsize.session.staging import Held
from outsize.stopping import Stopped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outsize.data.sampling import SampleCounts
    from outsize.planning.jobs import Prepared
    from outsize.train.loop import Position


class Saving:
    """Saves states and weights of a training in its run; of ranks the owner does, and all come by here."""

    def __init__(
        self,
        run: RunFolder,
        prepared: Prepared,
        seen: SampleCounts,
        score: str,
        world: World,
        held: Held,
    ) -> None:
        self._prepared, self._score, self._world, self.held = prepared, score, world, held
        self.run, self.seen = run, seen
        self._saved_step: int | None = None  # by this process

    def hooks(self) -> dict[str, Any]:
        """Return what the loop calls, by the names it has there."""
        if not self._world.is_owner:
            return {"save_state": self._give_state, "save_epoch": self._give_weights}
        return {
            "save_state": self.state,
            "save_epoch": self.epoch,
            "state_is_good": self.state_is_good,
            "state_is_bad": self.state_is_bad,
        }

    def state(self, tensors: Mapping[str, Tensor], where: Mapping[str, Any]) -> None:
        """Save all that goes on from here: what was seen of the epoch, too, so that nobody has to look again."""
        from outsize.strategies.offload import in_full
        from outsize.train.checkpoint import save_state

        self.even_out()
        position = {**where, "seen": self.seen.counts()}
        with self.held.whole():
            all_of_it = in_full(self.held.all_of(tensors))
            save_state(self.run.state, self._prepared.model, all_of_it, position)
        self._saved_step = where["total_steps"]

    @property
    def device(self) -> torch.device:
        """Where this rank trains."""
        return self._prepared.device

    def state_is_good(self) -> None:
        """Let go of the state before the last one."""
        from outsize.train.checkpoint import settle_state

        settle_state(self.run.state, is_good=True)

    def state_is_bad(self) -> None:
        """Go back to the state before; one that was read by this process and not saved stays where it is."""
        from outsize.train.checkpoint import earlier, settle_state

        if self._saved_step is not None or earlier(self.run.state).exists():
            settle_state(self.run.state, is_good=False)

    def epoch(self, position: Position, best: bool) -> None:
        """Save the weights of an epoch."""
        from outsize.card import save_checkpoint

        self.even_out()
        trained = {"phase": position.phase, "epoch": position.total_epochs, "step": position.total_steps}
        figures = {**trained, f"best_{self._score}": position.best_score}
        card = replace(self._prepared.card, trained=figures)
        with self.held.whole():
            if best:
                save_checkpoint(self.run.best, self._prepared.model, card)
            save_checkpoint(self.run.last, self._prepared.model, card)

    def _give_state(self, tensors: Mapping[str, Tensor], _: Mapping[str, Any]) -> None:
        """Have a state saved by the owner, who is given what this rank holds."""
        self.even_out()
        with self.held.whole():
            self.held.all_of(tensors)

    def _give_weights(self, *_: object) -> None:
        self.even_out()
        with self.held.whole():
            pass

    def even_out(self, *_: object) -> None:
        """Norms that stay apart have seen other samples on each rank: what is saved is the mean."""
        if self._prepared.where.sharing.local_norm:
            evened(self._prepared.model, self.held.replicas)

    @contextmanager
    def reporting(self, job_path: Path, overrides: Sequence[str], lr: float) -> Iterator[None]:
        """Where the block is stopped or diverges, say what is saved and how to go on from it."""
        from outsize.train.checkpoint import saved_step

        try:
            yield
        except Stopped as stopped:
            if self._saved_step is not None:
                stopped.kept, stopped.is_saved = f"saved at step {self._saved_step:,}", True
            raise
        except DivergedError as error:
            step = saved_step(self.run.state)
            words = ["outsize", "train", str(job_path), *_sets(overrides), "--set", f"train.lr={lr / 10:g}"]
            how = "--overwrite" if step is None else "--resume"
            saved = (
                "no good state is saved"
                if step is None
                else f"the last good state, of step {step:,}, is kept"
            )
            raise DivergedError(f"{error}. {saved}: {shlex.join([*words, how])}") from error


def _sets(overrides: Sequence[str]) -> list[str]:
    kept = [each for each in overrides if not each.startswith("train.lr=")]
    return [word for each in kept for word in ("--set", each)]
