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


def _log(folder: Path, from_step: int = 0, from_epoch: int = 0) -> TrainingLog:
    events = folder / "tensorboard"
    return TrainingLog(folder / "metrics.jsonl", events, from_step=from_step, from_epoch=from_epoch)


def _epoch(epoch: int, step: int, score: float = 0.25) -> dict[str, Any]:
    return {"kind": "epoch", "phase": 0, "epoch": epoch, "step": step, "mean_iou": score}


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


def test_an_epoch_that_was_scored_and_not_saved_is_logged_once(tmp_path: Path) -> None:
    """A kill between the line and the state: the state of the epoch's last step is what training goes on from."""
    path = tmp_path / "metrics.jsonl"
    log = _log(tmp_path)
    for record in (_step(10), _epoch(1, 10), _step(20), _epoch(2, 20, 0.5)):
        log.line(record)
    log = _log(tmp_path, from_step=20, from_epoch=1)
    log.line(_epoch(2, 20, 0.5))
    assert [(line["kind"], line["step"]) for line in _lines(path)] == [
        ("step", 10),
        ("epoch", 10),
        ("step", 20),
        ("epoch", 20),
    ]
    _log(tmp_path, from_step=20, from_epoch=2)
    assert len(_lines(path)) == 4


def test_lines_that_earlier_versions_wrote_twice_are_cut(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for record in (_epoch(1, 10, 0.1), _epoch(1, 10, 0.2), _epoch(2, 20)):
        log.line(record)
    _log(tmp_path, from_step=20, from_epoch=2)
    found = [(line["epoch"], line["mean_iou"]) for line in _lines(tmp_path / "metrics.jsonl")]
    assert found == [(1, 0.2), (2, 0.25)]


def test_a_line_has_the_mean_times_of_all_steps_since_the_last(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for step in range(1, 21):
        log.line({**_step(step), "wait_s": float(step), "step_s": 2.0 * step})
    first, second = _lines(tmp_path / "metrics.jsonl")
    assert (first["wait_s"], first["step_s"]) == (5.5, 11.0)
    assert (second["wait_s"], second["step_s"]) == (15.5, 31.0)
