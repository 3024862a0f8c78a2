"""Phases of training: what trains in each, and the learning rate of every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from outsize.errors import JobError, explain


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves over a phase."""

    kind: str  # constant, polynomial, step, cosine
    warmup_steps: int = 0
    power: float = 0.9
    step_epochs: int = 10
    step_factor: float = 0.1

    def factor(self, step: int, num_steps: int, steps_per_epoch: int) -> float:
        """Return what the phase's learning rate is multiplied by at `step` of `num_steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        match self.kind:
            case "polynomial":
                return float((1 - progress) ** self.power)
            case "step":
                return float(self.step_factor ** (step // (self.step_epochs * steps_per_epoch)))
            case "cosine":
                return (1 + math.cos(math.pi * progress)) / 2
            case _:
                return 1.0


@dataclass(frozen=True)
class TrainPhase:
    """One stretch of training with every blank filled in."""

    name: str
    epochs: int
    lr: float
    trainable: tuple[str, ...] = ()


def set_trainable(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Train the parameters whose names begin with one of the prefixes, or all where there is none."""
    check_trainable(model, prefixes)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not prefixes or name.startswith(tuple(prefixes)))


def check_trainable(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Refuse a prefix that no parameter's name begins with."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            tops = sorted({name.partition(".")[0] for name in names})
            need = f"the beginning of a parameter name ({', '.join(tops)})"
            raise JobError(
                explain("train.phases.trainable matches nothing", repr(prefix), need, "correct it")
            )
