"""Curves of the training: the learning rate from the first step of each phase."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outsize.report.gather import gather
from outsize.report.sections.training import learning_rates, show_training
from outsize.tasks import chapter_of


def _steps(*phases: int) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"step": 10 * number, "phase": phase, "lr": 0.25, "terms": {"loss": 1.0}}
        for number, phase in enumerate(phases, start=1)
    )


def test_warming_up_is_drawn_from_the_first_step(bare_run: Path) -> None:
    train = {"lr": 0.4, "warmup_steps": 8}
    story = replace(gather(bare_run), job={"train": train}, steps=_steps(0, 0))
    assert learning_rates(story) == [(1, pytest.approx(0.05)), (8, 0.4), (10, 0.25), (20, 0.25)]
    longer = replace(
        story, job={"train": {"lr": 0.4, "warmup_steps": 100}}
    )  # what was logged stays, no more is known
    assert learning_rates(longer) == [(1, pytest.approx(0.004)), (10, 0.25), (20, 0.25)]


def test_each_phase_warms_up_to_its_own_rate(bare_run: Path) -> None:
    train = {"lr": 0.4, "warmup_steps": 2, "phases": [{"name": "a"}, {"name": "b", "lr": 0.1}]}
    epochs = ({"phase": 0, "step": 11}, {"phase": 1, "step": 22})
    story = replace(gather(bare_run), job={"train": train}, steps=_steps(0, 1), epochs=epochs)
    expected = [(1, 0.2), (2, 0.4), (10, 0.25), (12, pytest.approx(0.05)), (13, 0.1), (20, 0.25)]
    assert learning_rates(story) == expected


def test_a_job_that_says_no_rate_adds_none(full_run: Path) -> None:
    story = gather(full_run)
    assert [step for step, _ in learning_rates(story)] == [10, 20, 30, 40, 50]
    assert "learning rate" in str(show_training(story, chapter_of("segment")))
