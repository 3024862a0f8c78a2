"""Phases of training: what trains in each, and the learning rate of every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from outsize.errors import JobError, explain


@dataclass(frozen=True)
class LrSchedule:
    """How the learning rate moves over a phase."""

    kind: str  # constant, polynomial, step, cosine
    warmup_steps: int = 0
    power: float = 0.9
    step_epochs: int = 10
    step_factor: float = 0.1

    def factor(self, step: int, num_steps: int, steps_per_epoch: int, *, spent: float = 0.0) -> float:
        """Return what the phase's learning rate is multiplied by at `step` of `num_steps`.

        `spent` is the share of the phase's time that is gone, where that is limited: the rate falls by whichever is
        further on.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        progress = max(progress, min(1.0, spent))
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
    output: str | None = None  # None: the one that the model was built to answer with


def begin_phase(model: nn.Module, phase: TrainPhase) -> None:
    """Let a phase's output answer, and its parameters train."""
    check_output(model, phase.output)
    if hasattr(model, "outputs"):
        model.output = phase.output or model.usual_output  # type: ignore[assignment]
    set_trainable(model, phase.trainable)


def label_strides(model: nn.Module, outputs: Iterable[str | None]) -> tuple[int, ...]:
    """Return by how much labels are reduced for these outputs of phases, each number once."""
    strides: Mapping[str, int] = getattr(model, "outputs", {})
    usual = getattr(model, "usual_output", None)
    return tuple(sorted({strides.get(output or usual or "", 1) for output in outputs}))


def check_output(model: nn.Module, output: str | None) -> None:
    """Refuse an output that the model has not."""
    known = list(getattr(model, "outputs", ()))
    if output is not None and output not in known:
        need = f"one of {', '.join(known)}" if known else "none: this model has one output"
        raise JobError(explain("train.phases.output is not known", repr(output), need, "correct it"))


def set_trainable(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Train the parameters whose names begin with one of the prefixes, or all where there is none."""
    check_trainable(model, prefixes)
    wanted = _spelt_out(model, prefixes)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not wanted or name.startswith(wanted))


def check_trainable(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Refuse a prefix that no parameter's name begins with."""
    names = [name for name, _ in model.named_parameters()]
    parts: Mapping[str, tuple[str, ...]] = getattr(model, "parts", {})
    for prefix in prefixes:
        if prefix not in parts and not any(name.startswith(prefix) for name in names):
            tops = sorted({name.partition(".")[0] for name in names})
            need = f"the beginning of a parameter name ({', '.join(tops)})"
            need += f", or one of {', '.join(parts)}" if parts else ""
            raise JobError(
                explain("train.phases.trainable matches nothing", repr(prefix), need, "correct it")
            )


def _spelt_out(model: nn.Module, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Put the beginnings of names for the parts that a model has names for, such as its heads."""
    parts: Mapping[str, tuple[str, ...]] = getattr(model, "parts", {})
    return tuple(each for prefix in prefixes for each in parts.get(prefix, (prefix,)))
