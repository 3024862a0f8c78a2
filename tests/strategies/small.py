"""A small step: what it is given, its loss, and how long its operations take."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.plan.step import StepOp
from outsize.strategies.step import Terms

SHAPE = (2, 3, 32, 32)


def op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12


def terms(model: nn.Module, batch: Batch) -> Terms:
    return {"loss": F.cross_entropy(model(batch.images), batch.targets.labels.long(), reduction="sum")}


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (2, 32, 32), generator=generator, dtype=torch.uint8)
    images = torch.randn(SHAPE, generator=generator)
    return Batch(
        images,
        torch.ones(labels.shape, dtype=torch.bool),
        ClassRasters(labels),
        {"loss": float(labels.numel())},
    )
