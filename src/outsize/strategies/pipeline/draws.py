"""Random numbers of a micro-batch in stages: the ones that one process draws, for the generator's state goes along.

part p is seeded by key + p -> stage 0 draws -> the state goes to the next stage that draws -> it goes on from there
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outsize.strategies.pipeline.messages import Letter, Mail
from outsize.strategies.pipeline.shapes import SentLayout, layout_of

if TYPE_CHECKING:
    from outsize.strategies.pipeline.cutting import Cutout


def state_of(device: torch.device) -> Tensor:
    """Return the state of the generator that layers on a device draw from; it lies on the host."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_state(device: torch.device, state: Tensor) -> None:
    """Let layers on a device draw from here on."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def state_layout(device: torch.device) -> SentLayout:
    """Return what a state looks like as a message."""
    return layout_of(state_of(device))


def next_drawing(cutout: Cutout, stage: int) -> int | None:
    """Return the stage behind one that draws next; None: no other does."""
    drawing = (each for each in range(stage + 1, len(cutout.programs)) if cutout.programs[each].draws)
    return next(drawing, None)


@dataclass
class StageDraws:
    """The states that a step's micro-batches have got to, on one rank."""

    device: torch.device
    ranks: Sequence[int]
    rank: int
    recomputes: Sequence[bool]
    seed: Callable[[int], None]  # begins a micro-batch
    mail: Mail
    _here: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # to a stage, of a micro-batch
    _begun: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # for a stage that runs again

    def needed(self, cutout: Cutout, stage: int, micro: int) -> list[Letter]:
        """Return the message that a stage waits for before it draws."""
        before = self._before(cutout, stage)
        if before is None or self.ranks[before] == self.rank:
            return []
        return [Letter("state", "", stage, micro)]

    def begin(self, cutout: Cutout, stage: int, micro: int) -> None:
        """Let a stage draw where the one before it has stopped."""
        if not cutout.programs[stage].draws:
            return
        before = self._before(cutout, stage)
        if before is None:
            self.seed(micro)
        elif self.ranks[before] == self.rank:
            set_state(self.device, self._here.pop((stage, micro)))
        else:
            set_state(self.device, self.mail.take(Letter("state", "", stage, micro)))
        if self.recomputes[stage]:
            self._begun[stage, micro] = state_of(self.device)

    def end(self, cutout: Cutout, stage: int, micro: int) -> None:
        """Pass the state on."""
        after = next_drawing(cutout, stage) if cutout.programs[stage].draws else None
        if after is None:
            return
        if self.ranks[after] == self.rank:
            self._here[after, micro] = state_of(self.device)
        else:
            self.mail.send(self.ranks[after], Letter("state", "", after, micro), state_of(self.device))

    @contextmanager
    def again(self, stage: int, micro: int) -> Iterator[None]:
        """Let a stage draw inside what it drew before."""
        begun = self._begun.pop((stage, micro), None)
        if begun is None:
            yield
            return
        now = state_of(self.device)
        set_state(self.device, begun)
        yield
        set_state(self.device, now)

    def _before(self, cutout: Cutout, stage: int) -> int | None:
        if not cutout.programs[stage].draws:
            return None
        drawing = (each for each in range(stage - 1, -1, -1) if cutout.programs[each].draws)
        return next(drawing, None)
