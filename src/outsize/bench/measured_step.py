"""The step that is measured, and what it takes that is there whichever way it runs: weights, state, batch."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.cuda import MemPool, use_mem_pool

from outsize.job import TrainSection
from outsize.tasks.task import Task
from outsize.train.made_up import MadeUpStep, make_up_step


def make_measured_step(
    model: nn.Module,
    task: Task,
    section: TrainSection,
    num_bands: int,
    num_classes: int,
    device: torch.device,
    *,
    bf16: bool,
) -> MadeUpStep:
    """Return the step that a section `train` describes, on a copy of the model and a batch of noise.

    The optimizer has made its state before any way runs: what stays between steps is then the same for all.
    """
    shape = (section.batch, num_bands, *section.window_px)
    found = make_up_step(model, task, section, shape, num_classes, device, bf16=bf16)
    trained = [each for each in found.model.parameters() if each.requires_grad]
    # in memory of their own, or they would leave gaps between what stays
    apart = use_mem_pool(MemPool()) if trained and all(each.is_cuda for each in trained) else nullcontext()
    with apart:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
    found.optimizer.step()
    found.forget()
    return found


def resident_bytes(measured: MadeUpStep) -> int:
    """Return what stays on the device between two steps: weights, buffers, the optimizer's state."""
    states = [each for entries in measured.optimizer.state.values() for each in entries.values()]
    tensors = [each for each in states if isinstance(each, Tensor)]
    return _size_bytes([*measured.model.parameters(), *measured.model.buffers(), *tensors], measured.device)


def batch_bytes(measured: MadeUpStep) -> int:
    """Return what the batch takes, which is there in every step."""
    batch = measured.batch
    return _size_bytes(batch.tensors(), measured.device)


def _size_bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Add up storages on a device, each once; a counter of steps may lie on the host."""
    storages = [each.untyped_storage() for each in tensors if each.device == device]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
