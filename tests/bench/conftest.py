"""A tiny step to measure."""

from __future__ import annotations

import pytest
import torch

from outsize.bench.subject import Subject, make_subject
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.tasks import TASKS

BLOCKS = ("encoder.0", "encoder.1", "bottleneck", "decoder.0", "decoder.1")


@pytest.fixture
def subject() -> Subject:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=3, width=4)
    section = TrainSection(batch=2, tile_px=32)
    return make_subject(model, TASKS["segment"], section, 2, 3, torch.device("cpu"), bf16=False)
