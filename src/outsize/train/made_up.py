"""A training step on made-up pixels: what profiles, benchmarks and proofs run in place of one on real data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from outsize.card import to_device
from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.job import TrainSection
from outsize.plan.plan import Plan
from outsize.strategies.compose import LossTerms, Terms, compose
from outsize.strategies.step import Step
from outsize.tasks.task import Task
from outsize.train.optimizer import make_optimizer


@dataclass(frozen=True)
class MadeUpStep:
    """A copy of a model with its loss, its optimizer and one batch; several ways to run it may take turns."""

    model: nn.Module
    terms: LossTerms
    optimizer: torch.optim.Optimizer
    batch: Batch
    device: torch.device
    bf16: bool

    def composed(self, plan: Plan, **how: Any) -> Step:
        """Return the step that a plan describes; `how` it is run is what `compose` takes besides."""
        return compose(self.model, self.terms, plan, bf16=self.bf16, **how)

    def runs(self, step: Step) -> Callable[[], Terms]:
        """Return what runs a step and all that a training does around it."""

        def run() -> Terms:
            terms = step(self.batch, last=True)
            self.optimizer.step()
            self.forget()
            return terms

        return run

    def forget(self) -> None:
        """Drop the gradients, also those that a failed step has left behind."""
        self.optimizer.zero_grad(set_to_none=True)


def make_up_step(
    model: nn.Module,
    task: Task,
    section: TrainSection,
    shape: tuple[int, int, int, int],
    num_classes: int,
    device: torch.device,
    *,
    bf16: bool,
) -> MadeUpStep:
    """Return the step that a section `train` describes, on a copy of a model and a batch of noise of a shape."""
    batch = make_up_batch(model, task, section.loss, shape, num_classes)
    twin = to_device(copy.deepcopy(model), device).train()
    optimizer = make_optimizer(
        twin, section.optimizer, lr=section.lr, momentum=section.momentum, weight_decay=section.weight_decay
    )
    terms = task.make_loss_terms(section.loss, _plain_statistics(shape[1]), None)
    return MadeUpStep(twin, terms, optimizer, batch.to(device), device, bf16)


def make_up_batch(
    model: nn.Module,
    task: Task,
    loss: str,
    shape: tuple[int, int, int, int],
    num_classes: int,
    *,
    statistics: BandStatistics | None = None,
    missing: float = 0.0,
    seed: int = 0,
) -> Batch:
    """Draw pixels, spread as `statistics` say, and labels; that share of either is not valid.

    It has all maps that the model wants: a training's batches come with them, and no step makes any.
    """
    num_samples, num_bands, height, width = shape
    statistics = statistics or _plain_statistics(num_bands)
    generator = torch.Generator().manual_seed(seed)  # a run's own draws stay as they were
    noise = torch.randn(shape, generator=generator)
    labels = torch.randint(num_classes, (num_samples, height, width), generator=generator, dtype=torch.uint8)
    labels[torch.rand(labels.shape, generator=generator) < missing] = IGNORE
    valid = torch.rand(labels.shape, generator=generator) >= missing
    mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (statistics.mean, statistics.std))
    batch = task.complete(Batch(noise * std + mean, valid, ClassRasters(labels), {}), model, loss, statistics)
    return replace(batch, totals=task.count_terms(loss, batch.targets, None))


def _plain_statistics(num_bands: int) -> BandStatistics:
    return BandStatistics((0.0,) * num_bands, (1.0,) * num_bands)
