"""A training that does not fit plainly ends with the weights of one that does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands.tiny_jobs import trained

from outsize.commands.train import train
from outsize.data.batch import Batch
from outsize.errors import RunError
from outsize.planning.jobs.preparing import Prepared
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session import validating
from outsize.strategies import compose
from outsize.strategies.step import Step, Terms

QUIET = Reporter("quiet")


def test_recomputed_weights_are_the_same_to_the_bit(job_path: Path) -> None:
    plain, plan = trained(job_path, "plain", "limits.host_memory=1GiB")
    assert plan["recompute"] is None
    tight_bytes = int(0.85 * plan["peak_bytes"] / 0.7)  # type: ignore[operator]
    tight, plan = trained(job_path, "tight", f"limits.host_memory={tight_bytes}")
    assert plan["recompute"] is not None
    assert plan["exact"]
    assert all(torch.equal(tight[name], value) for name, value in plain.items())


@pytest.mark.parametrize("share", [pytest.param(0.4, marks=pytest.mark.long), 0.3])
def test_weights_from_parts_are_those_of_the_whole(job_path: Path, share: float) -> None:
    plain, plan = trained(job_path, "plain", "limits.host_memory=1GiB", "model.norm=none")
    tight_bytes = int(share * plan["peak_bytes"] / 0.7)  # type: ignore[operator]
    tight, plan = trained(job_path, "tight", f"limits.host_memory={tight_bytes}", "model.norm=none")
    assert plan["micro_batches"] or plan["tiles"]
    assert plan["exact"]
    for name, value in plain.items():
        torch.testing.assert_close(tight[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.long
def test_windows_that_are_no_squares_are_trained_in_parts_and_resumed(job_path: Path) -> None:
    asked = ("train.tile_px=[57,120]", "model.norm=none", "limits.host_memory=1GiB")
    plain, plan = trained(job_path, "plain", *asked)
    assert " windows of 57 x 120 px are filled up to " in plan["why"][0]  # type: ignore[index]
    tight_bytes = int(0.3 * plan["peak_bytes"] / 0.7)  # type: ignore[operator]
    tight, plan = trained(job_path, "tight", *asked, f"limits.host_memory={tight_bytes}")
    assert plan["micro_batches"] or plan["tiles"]
    assert plan["exact"]
    for name, value in plain.items():
        torch.testing.assert_close(tight[name], value, rtol=2e-3, atol=2e-4)
    run = RunFolder(job_path.parent / "plain")
    facts = json.loads(run.facts.read_text())["train"]
    assert facts["side_px"] == [57, 120]
    again = [*asked, f"run={run.path.as_posix()}", "limits.tile_px=16"]
    train(
        job_path, overrides=again, device_name="cpu", mode="resume", reporter=QUIET
    )  # nothing is left to do
    with pytest.raises(RunError, match=r"train\.tile_px = \[120, 57\] instead of"):
        train(
            job_path,
            overrides=[*again, "train.tile_px=[120,57]"],
            device_name="cpu",
            mode="resume",
            reporter=QUIET,
        )


PHASES = (
    'train.phases=[{name="head", epochs=2, trainable=["head"]}, {name="all", epochs=1}]',
    "train.samples_per_epoch=4",
    "train.batch=2",
)


@pytest.mark.parametrize(
    ("fails_at", "asked"),
    [
        pytest.param((3,), (), id="once", marks=pytest.mark.long),
        pytest.param((3, 7), (), id="twice", marks=pytest.mark.long),
        pytest.param((2,), PHASES, id="in the phase of the head", marks=pytest.mark.long),
        pytest.param((2, 7), PHASES, id="in both phases"),
    ],
)
def test_a_training_that_runs_out_of_memory_goes_on(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: tuple[int, ...], asked: tuple[str, ...]
) -> None:
    plain, before = trained(job_path, "plain", *asked)
    whole, num_calls = compose.compose, 0

    def failing(*args: Any, **settings: Any) -> Step:
        step = whole(*args, **settings)

        def run(batch: Batch, *, last: bool) -> Terms:
            nonlocal num_calls
            num_calls += 1
            shares = step(batch, last=last)
            if num_calls in fails_at:  # when gradients and statistics of batch norm are there
                raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")
            return shares

        return run

    monkeypatch.setattr(compose, "compose", failing)
    tight, after = trained(job_path, "tight", *asked)
    assert after["peak_bytes"] < before["peak_bytes"]  # type: ignore[operator]
    assert after["recompute"] is not None
    assert all(torch.equal(tight[name], value) for name, value in plain.items())
    lines = _lines(job_path.parent / "tight")
    told = [line["warning"] for line in lines if line["kind"] == "plan"]
    assert len(told) == len(fails_at)
    assert told[0].startswith("memory ran out: ")


def test_a_validation_that_runs_out_of_memory_goes_on_in_smaller_parts(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("train.epochs=2", "limits.tile_px=64", "limits.host_memory=1GiB")
    plain, _ = trained(job_path, "plain", *asked)
    whole, tried = validating.validate, []

    def failing(task: str, prepared: Prepared, model: torch.nn.Module, folder: Path) -> Mapping[str, Any]:
        plan = prepared.predict_plan
        assert plan.tiles is not None
        tried.append((plan.batch, plan.tiles.core_px))
        if plan.batch > 1 or plan.tiles.core_px > 32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(task, prepared, model, folder)

    monkeypatch.setattr(validating, "validate", failing)
    tight, _ = trained(job_path, "tight", *asked)
    assert all(torch.equal(tight[name], value) for name, value in plain.items())
    assert tried[-2] == tried[-1]  # of the second epoch at once, for it is known
    assert tried[-1][1] <= 32 < tried[0][1]
    assert len(set(tried)) == len(tried) - 1
    lines = [_lines(job_path.parent / name) for name in ("plain", "tight")]
    scores = [[line["mean_iou"] for line in each if line["kind"] == "epoch"] for each in lines]
    assert scores[0] == scores[1]
    told = [line["warning"] for line in lines[1] if line["kind"] == "plan"]
    assert len(told) == len(tried) - 2
    assert all(text.startswith("memory ran out in validation (OutOfMemoryError: CUDA out") for text in told)
    kept = json.loads((job_path.parent / "tight" / "plan.json").read_text())["predict"]
    assert (kept["batch"], kept["tiles"]["core_px"]) == tried[-1]


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_memory_that_runs_out_between_steps_is_one_line(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(validating, "validate", short)
    with pytest.raises(RunError, match="memory ran out between two steps: found CUDA out of memory, needed"):
        trained(job_path, "short")
