"""What is measured: a model, its loss, its optimizer and one batch of made-up pixels, on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.cuda import MemPool, use_mem_pool

from outsize.data.batch import Batch
from outsize.data.pixels.statistics import BandStatistics
from outsize.job import TrainSection
from outsize.strategies.steps.step import LossTerms, Step
from outsize.tasks import Task
from outsize.train.checkpoint import to_device
from outsize.train.optimizer import make_optimizer


@dataclass(frozen=True)
class Subject:
    """One training step in all its parts; ways to run it take turns on the same weights."""

    model: nn.Module
    terms: LossTerms
    optimizer: torch.optim.Optimizer
    batch: Batch
    device: torch.device
    bf16: bool

    @property
    def resident_bytes(self) -> int:
        """What stays on the device between two steps: weights, buffers, the optimizer's state."""
        return _size_bytes(self._resident(), self.device)

    @property
    def batch_bytes(self) -> int:
        """What the batch takes, which is there in every step."""
        maps = self.batch.maps.values()
        return _size_bytes((self.batch.images, self.batch.valid, self.batch.labels, *maps), self.device)

    def runs(self, step: Step) -> Callable[[], None]:
        """Return what runs a step and all that a training does around it."""

        def run() -> None:
            step(self.batch, last=True)
            self.optimizer.step()
            self.forget()

        return run

    def forget(self) -> None:
        """Drop the gradients, also those that a failed step has left behind."""
        self.optimizer.zero_grad(set_to_none=True)

    def _resident(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        for entries in self.optimizer.state.values():
            yield from (each for each in entries.values() if isinstance(each, Tensor))


def make_subject(
    model: nn.Module,
    task: Task,
    section: TrainSection,
    num_bands: int,
    num_classes: int,
    device: torch.device,
    *,
    bf16: bool,
) -> Subject:
    """Return the step that a section `train` describes, on a copy of the model and a batch of noise."""
    sides_px = section.window_px
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((section.batch, num_bands, *sides_px), generator=generator)
    shape = (section.batch, *sides_px)
    labels = torch.randint(num_classes, shape, generator=generator, dtype=torch.uint8)
    totals = task.count_terms(section.loss, labels, None)
    statistics = BandStatistics((0.0,) * num_bands, (1.0,) * num_bands)
    batch = Batch(images, torch.ones(shape, dtype=torch.bool), labels, totals)
    # with all maps now: a training's batches come with them, and no step makes any
    batch = task.complete(batch, model, section.loss, statistics).to(device)
    terms = task.make_loss_terms(section.loss, statistics, None)
    twin = to_device(copy.deepcopy(model), device).train()
    optimizer = make_optimizer(
        twin, section.optimizer, lr=section.lr, momentum=section.momentum, weight_decay=section.weight_decay
    )
    _make_state(twin, optimizer)
    return Subject(twin, terms, optimizer, batch, device, bf16)


def _make_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make its state before any way runs: what stays between steps is then the same for all."""
    trained = [each for each in model.parameters() if each.requires_grad]
    # in memory of their own, lest they leave gaps between what stays
    apart = use_mem_pool(MemPool()) if trained and all(each.is_cuda for each in trained) else nullcontext()
    with apart:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _size_bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Add up storages on a device, each once; a counter of steps may lie on the host."""
    storages = [each.untyped_storage() for each in tensors if each.device == device]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
