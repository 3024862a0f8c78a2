"""A training that goes bad or is stopped keeps its last good state, and says how to go on from it."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from outsize import stopping
from outsize.card import load_checkpoint
from outsize.commands.train import train
from outsize.errors import DivergedError, RunError
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session import training, validating
from outsize.train.checkpoint import earlier, saved_step

_TINY = (
    "train.tile_px=32",
    "limits.tile_px=16",
    "train.batch=2",
    "train.samples_per_epoch=12",
    "model.levels=2",
)


def _train(job_path: Path, mode: str, *overrides: str) -> RunFolder:
    run = job_path.parent / "bad"
    every = [f"run={run.as_posix()}", *_TINY, *overrides]
    return train(job_path, overrides=every, device_name="cpu", mode=mode, reporter=Reporter("quiet"))


def _spoiling(step: int, spoil: Callable[[nn.Module], None]) -> Callable[..., Any]:
    """Stand in for `recovering`: spoil the model behind a step, as a rate that is too high would."""

    def recovering(run: Any, model: nn.Module, *_: Any) -> Any:
        num_steps = 0

        def spoiling(batch: Any, *, last: bool) -> Any:
            nonlocal num_steps
            num_steps += 1
            if num_steps == step + 1:
                spoil(model)
            return run(batch, last=last)

        return spoiling

    return recovering


def _fill(value: float) -> Callable[[nn.Module], None]:
    def fill(model: nn.Module) -> None:
        with torch.no_grad():
            next(iter(model.parameters())).fill_(value)

    return fill


def _diverging(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, *overrides: str, mode: str = "new"
) -> str:
    with monkeypatch.context() as patch:
        patch.setattr("outsize.strategies.steps.recovering", _spoiling(step, _fill(float("nan"))))
        with pytest.raises(DivergedError) as found:
            _train(job_path, mode, *overrides)
    return str(found.value)


def test_bad_weights_replace_none_and_a_lower_rate_goes_on(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _diverging(job_path, monkeypatch, 8, "train.lr=0.1", "train.epochs=3")
    assert "training diverged at step 9: found cross_entropy = nan at learning rate" in told
    assert "is the first weight with NaN or infinity" in told
    assert "the last good state, of step 6, is kept" in told
    run = RunFolder(job_path.parent / "bad")
    assert load_checkpoint(run.best)[1].trained["step"] == 6
    assert saved_step(run.state) == 6
    words = shlex.split(told.rpartition("is kept: ")[2])
    assert words[:2] == ["outsize", "train"]
    assert words[-3:] == ["--set", "train.lr=0.01", "--resume"]
    _train(job_path, "resume", "train.lr=0.01", "train.epochs=3")
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    (changed,) = (line for line in lines if line["kind"] == "changes")
    assert changed == {
        "kind": "changes",
        "phase": 0,
        "epoch": 1,
        "step": 6,
        "changes": {"train.lr": {"before": 0.1, "now": 0.01}},
    }
    assert "lr = 0.01" in run.job.read_text()
    assert load_checkpoint(run.last)[1].trained["step"] == 18


@pytest.mark.parametrize("steps", [1, 2])
def test_a_state_from_which_nothing_can_go_on_is_not_kept(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The weights are spoilt behind step 4, where they are saved; that shows in the loss of step 5 alone."""
    told = _diverging(job_path, monkeypatch, 4, f"train.checkpoint_steps={steps}", "train.lr=0.1")
    run = RunFolder(job_path.parent / "bad")
    assert f"the last good state, of step {4 - steps}, is kept" in told
    assert saved_step(run.state) == 4 - steps
    assert not earlier(run.state).exists()
    _train(job_path, "resume", f"train.checkpoint_steps={steps}", "train.lr=0.001")


def test_where_no_state_was_good_none_is_left(job_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _diverging(job_path, monkeypatch, 3, "train.lr=0.1")
    assert "no good state is saved: outsize train" in told
    assert told.endswith("--overwrite")
    assert not (job_path.parent / "bad" / "checkpoints").exists()


def test_a_finished_training_keeps_one_state(job_path: Path) -> None:
    run = _train(job_path, "new", "train.checkpoint_steps=2")
    assert run.state.exists()
    assert not earlier(run.state).exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("train.batch=3", "train.batch = 3 instead of 2"),
        ("seed=9", "seed = 9"),
        ("train.loss=dice", "train.loss"),
    ],
)
def test_what_was_saved_does_not_fit_other_changes(job_path: Path, change: str, named: str) -> None:
    _train(job_path, "new", "train.epochs=1")
    with pytest.raises(RunError, match=rf"cannot be resumed: found .*{named}.* but for its rates"):
        _train(job_path, "resume", "train.epochs=1", change, "train.lr=0.5", "train.workers=1")


def test_a_training_is_stopped_in_its_validation_and_scored_when_resumed(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("went on")

    def verb() -> None:
        with stopping.listening():
            _train(job_path, "new")

    with monkeypatch.context() as patch:
        patch.setattr(validating, "validate", stopped)
        with pytest.raises(stopping.Stopped) as found:
            verb()
    assert found.value.kept == "saved at step 6"
    assert found.value.is_saved
    run = RunFolder(job_path.parent / "bad")
    assert not run.last.exists()
    _train(job_path, "resume")
    whole = job_path.parent / "whole"
    _train(job_path, "new", f"run={whole.as_posix()}")
    one, other = load_file(run.last), load_file(RunFolder(whole).last)
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_training_that_is_stopped_before_its_first_step_says_nothing_of_a_state(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    def verb() -> None:
        with stopping.listening():
            _train(job_path, "new")

    monkeypatch.setattr(training, "open_samples", stopped)
    with pytest.raises(stopping.Stopped) as found:
        verb()
    assert not found.value.is_saved
    assert not found.value.kept
