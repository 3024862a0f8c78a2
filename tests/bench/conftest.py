"""A tiny step to measure."""

from __future__ import annotations

import pytest
import torch

from outsize.bench.measured_step import make_measured_step
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.tasks import task_of
from outsize.train.made_up import MadeUpStep

BLOCKS = ("encoder.0", "encoder.1", "bottleneck", "decoder.0", "decoder.1")


@pytest.fixture
def made_up() -> MadeUpStep:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=3, width=4)
    section = TrainSection(batch=2, tile_px=32)
    return make_measured_step(model, task_of("segment"), section, 2, 3, torch.device("cpu"), bf16=False)
