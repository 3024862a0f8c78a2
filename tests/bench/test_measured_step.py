"""The step that is measured: its own copy of a model, and what stays of it between two steps."""

from __future__ import annotations

import torch
from torch import nn

from outsize.bench.measured_step import batch_bytes, make_measured_step, resident_bytes
from outsize.bench.ways import WAYS
from outsize.job import TrainSection
from outsize.tasks import task_of
from outsize.train.made_up import MadeUpStep


def test_what_stays_is_there_before_the_first_step_and_the_same_after(made_up: MadeUpStep) -> None:
    before_bytes = resident_bytes(made_up)
    weights = sum(each.nbytes for each in made_up.model.parameters())
    buffers = sum(each.nbytes for each in made_up.model.buffers())
    steps = 4 * len(list(made_up.model.parameters()))  # AdamW counts for each parameter by itself
    assert before_bytes == 3 * weights + buffers + steps
    made_up.runs(WAYS["plain"].make(made_up, ()))()
    assert resident_bytes(made_up) == before_bytes
    assert all(each.grad is None for each in made_up.model.parameters())


def test_the_batch_counts_with_its_maps(made_up: MadeUpStep) -> None:
    assert batch_bytes(made_up) == 2 * 32 * 32 * (2 * 4 + 1 + 1)
    model = nn.Conv2d(3, 3, 1)
    model.input_maps = ("canny",)  # type: ignore[assignment]
    section, cpu = TrainSection(batch=2, tile_px=16), torch.device("cpu")
    with_map = make_measured_step(model, task_of("segment"), section, 2, 3, cpu, bf16=False)
    assert batch_bytes(with_map) == 2 * 16 * 16 * (2 * 4 + 1 + 1 + 1)
