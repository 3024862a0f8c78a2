"""metrics.jsonl and TensorBoard events of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from outsize.train.log import LOG_STEPS, TrainingLog


def _step(step: int) -> dict[str, Any]:
    terms = {"cross_entropy": torch.tensor(1.5)}
    return {"kind": "step", "phase": 0, "epoch": 0, "step": step, "lr": 0.1, "terms": terms}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _log(folder: Path, from_step: int = 0) -> TrainingLog:
    return TrainingLog(folder / "metrics.jsonl", folder / "tensorboard", from_step=from_step)


def test_each_tenth_step_and_every_epoch(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for step in range(1, 25):
        log.line(_step(step))
    log.line({"kind": "epoch", "phase": 0, "epoch": 1, "step": 24, "mean_iou": 0.25})
    lines = _lines(tmp_path / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", LOG_STEPS),
        ("step", 2 * LOG_STEPS),
        ("epoch", 24),
    ]
    assert lines[0]["terms"] == {"cross_entropy": 1.5}


def test_tensorboard_has_the_same_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = _log(tmp_path)
    log.line(_step(10))
    log.line({"kind": "epoch", "phase": 0, "epoch": 1, "step": 12, "mean_iou": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"step/lr", "step/terms/cross_entropy", "epoch/mean_iou"}
    found = events.Scalars("step/terms/cross_entropy")
    assert [(each.step, each.value) for each in found] == [(10, 1.5)]


def test_a_resumed_log_drops_what_came_after_and_a_broken_line(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for step in (10, 20, 30):
        log.line(_step(step))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "step", "st')
    log = _log(tmp_path, from_step=20)
    log.line(_step(30))
    assert [line["step"] for line in _lines(path)] == [10, 20, 30]


def test_a_line_has_the_mean_times_of_all_steps_since_the_last(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for step in range(1, 21):
        log.line({**_step(step), "wait_s": float(step), "step_s": 2.0 * step})
    first, second = _lines(tmp_path / "metrics.jsonl")
    assert (first["wait_s"], first["step_s"]) == (5.5, 11.0)
    assert (second["wait_s"], second["step_s"]) == (15.5, 31.0)
