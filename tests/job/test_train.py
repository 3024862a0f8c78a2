"""The section on training: phases, and the size of windows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from outsize.job.load import dump_job, load_job
from outsize.job.train import Phase, TrainSection


def test_a_window_has_a_side_or_height_and_width(job_path: Path) -> None:
    assert load_job(job_path, ["train.tile_px=96"]).train.window_px == (96, 96)
    job = load_job(job_path, ["train.tile_px=[64,128]"])
    assert (job.train.tile_px, job.train.window_px) == ((64, 128), (64, 128))
    assert load_job(job_path, ["train.tile_px=[64, 64]"]).train.tile_px == 64
    again = job_path.with_name("again.toml")
    again.write_text(dump_job(job))
    assert load_job(again) == job


def test_phases_take_what_they_leave_out_from_the_section(job_path: Path) -> None:
    text = job_path.read_text() + '\n[[train.phases]]\nname = "head"\ntrainable = "head"\nepochs = 1\n'
    job_path.write_text(text)
    (phase,) = load_job(job_path).train.all_phases()
    assert (phase.name, phase.epochs, phase.lr, phase.trainable) == ("head", 1, 1e-3, ("head",))


def test_plain_training_has_one_phase() -> None:
    section = TrainSection(epochs=3, lr=0.5)
    assert section.all_phases() == (Phase(epochs=3, lr=0.5, log_offset=section.log_offset),)


@pytest.mark.parametrize(("rule", "lr"), [("linear", 0.8), ("root", 0.2 * 2)])
def test_the_rate_follows_the_batch_where_it_is_meant_for_another(
    rule: Literal["linear", "root"], lr: float
) -> None:
    section = TrainSection(lr=0.2, batch=40, lr_for_batch=10, lr_rule=rule, phases=(Phase(), Phase(lr=0.02)))
    assert [phase.lr for phase in section.all_phases()] == pytest.approx([lr, lr / 10])
    assert TrainSection(lr=0.2, batch=40, lr_rule=rule).all_phases()[0].lr == 0.2
