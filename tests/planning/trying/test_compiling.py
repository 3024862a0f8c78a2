"""Compiling is tried before planning where the job allows it, and taken where it is faster or needs less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outsize.commands.train import train
from outsize.errors import PlanError
from outsize.job import Job, load_job
from outsize.measure.machine import look_at_machine
from outsize.models import build_model
from outsize.plan.machines import find_machine
from outsize.planning.jobs import planning
from outsize.planning.situation import Situation
from outsize.planning.trying import compiling
from outsize.planning.trying.compiling import try_compiled
from outsize.progress import Reporter
from outsize.runs import RunFolder

_CPU = torch.device("cpu")
_QUIET = Reporter("quiet")


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", "aot_eager")  # the same graphs, no C compiler


@pytest.fixture
def job(job_path: Path) -> Job:
    return load_job(job_path, ["train.compile=true", "train.tile_px=32"])


def _tried(job: Job, reporter: Reporter = _QUIET) -> tuple[compiling.Compiled, ...]:
    model = build_model("unet", num_classes=len(job.data.classes), in_channels=3, levels=2, width=4)
    where = Situation(look_at_machine(_CPU), find_machine("h200").rates, bf16=False, device=_CPU)
    step_of = planning._step_of(job, model, 3, where)
    random = torch.get_rng_state()
    found = try_compiled(job, model, 3, where, step_of, reporter)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(each.grad is None for each in model.parameters())
    return found


def test_compiled_blocks_are_tried_as_they_are_and_keeping_half(job: Job) -> None:
    whole, half = _tried(job)
    assert whole.setting.activation_budget is None
    assert half.setting.activation_budget == 0.5
    assert whole.setting.paths == half.setting.paths != ()
    assert whole.time_share > 0
    assert whole.memory_share == half.memory_share == 1  # a CPU does not count


@pytest.mark.long
def test_memory_is_told_as_a_share_of_the_plain_steps(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    rises = iter([1000, 1200, 700])
    monkeypatch.setattr("outsize.measure.memory.rise_bytes", lambda *_: next(rises))
    assert [each.memory_share for each in _tried(job)] == [1.2, 0.7]


def test_a_block_that_cannot_be_compiled_is_told_and_left(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PlanError("bottleneck cannot be compiled")

    monkeypatch.setattr(compiling, "_compared", refuse)
    assert _tried(job, Reporter("json")) == ()
    assert "nothing is compiled: bottleneck" in "".join(capsys.readouterr())


@pytest.mark.parametrize("time_share", [0.5, pytest.param(2.0, marks=pytest.mark.long)])
def test_training_takes_it_where_it_is_faster(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, time_share: float
) -> None:
    seconds = iter([(1.0, 0.0), (time_share, 0.0), (3.0, 0.0)])  # plain, compiled, half of it kept
    monkeypatch.setattr("outsize.measure.learning.device_and_host_s", lambda *_: next(seconds))
    run = RunFolder(job_path.parent / "compiled")
    every = ["train.tile_px=32", "train.compile=true", "train.epochs=1", f"run={run.path.as_posix()}"]
    train(job_path, overrides=every, device_name="cpu", mode="new", reporter=_QUIET)
    plan = json.loads(run.plan.read_text())["train"]
    if time_share < 1:
        assert plan["compile"]["paths"]
        assert plan["compile"]["activation_budget"] is None
        assert "not the fastest" in plan["why"][0]
    else:
        assert plan["compile"] is None
        assert plan["why"][0].startswith("the plain step needs")
