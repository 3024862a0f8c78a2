"""The step that is measured: its own copy of a model, and what stays of it between two steps."""

from __future__ import annotations

import torch
from torch import nn

from outsize.bench.subject import Subject, make_subject
from outsize.bench.ways import WAYS
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.tasks import TASKS


def test_what_stays_is_there_before_the_first_step_and_the_same_after(subject: Subject) -> None:
    before_bytes = subject.resident_bytes
    weights = sum(each.nbytes for each in subject.model.parameters())
    buffers = sum(each.nbytes for each in subject.model.buffers())
    steps = 4 * len(list(subject.model.parameters()))  # AdamW counts for each parameter by itself
    assert before_bytes == 3 * weights + buffers + steps
    subject.runs(WAYS["plain"].make(subject, ()))()
    assert subject.resident_bytes == before_bytes
    assert all(each.grad is None for each in subject.model.parameters())


def test_a_step_trains(subject: Subject) -> None:
    before = [each.detach().clone() for each in subject.model.parameters()]
    subject.runs(WAYS["plain"].make(subject, ()))()
    assert any(not torch.equal(*pair) for pair in zip(before, subject.model.parameters(), strict=True))


def test_the_batch_is_what_the_section_says(subject: Subject) -> None:
    assert subject.batch.images.shape == (2, 2, 32, 32)
    assert subject.batch.labels.unique().tolist() == [0, 1, 2]
    assert subject.batch_bytes == 2 * 32 * 32 * (2 * 4 + 1 + 1)
    assert subject.batch.totals == {"cross_entropy": 2 * 32 * 32}


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4).eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    section, cpu = TrainSection(batch=2, tile_px=16, optimizer="sgd"), torch.device("cpu")
    subject = make_subject(model, TASKS["segment"], section, 2, 3, cpu, bf16=True)
    subject.runs(WAYS["plain"].make(subject, ()))()
    assert not model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_maps_are_made_before_the_clock_runs() -> None:
    model = nn.Conv2d(3, 3, 1)
    model.input_maps = ("canny",)  # type: ignore[assignment]
    section, cpu = TrainSection(batch=2, tile_px=16), torch.device("cpu")
    subject = make_subject(model, TASKS["segment"], section, 2, 3, cpu, bf16=False)
    assert subject.batch.maps["canny"].shape == (2, 16, 16)
    assert subject.batch_bytes == 2 * 16 * 16 * (2 * 4 + 1 + 1 + 1)
    subject.runs(WAYS["plain"].make(subject, ()))()
