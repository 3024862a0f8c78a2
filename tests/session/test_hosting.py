"""A training that moves tensors to host memory, or leaves its weights there, ends as one that does not, and tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.commands.tiny_jobs import trained
from torch import nn
from torch.distributed.fsdp import FSDPModule

from outsize.commands.train import train
from outsize.data.batch import Batch
from outsize.errors import PlanError
from outsize.job import LimitsSection
from outsize.plan.plan import Offload, Plan, PlannedSwap, Swap
from outsize.plan.search.timeline import Link
from outsize.plan.way import StepRequest
from outsize.planning.jobs import preparing, shortage
from outsize.planning.jobs.planning import Plans
from outsize.progress import Reporter
from outsize.report.page import make_page
from outsize.runs import RunFolder
from outsize.session import training, validating
from outsize.session.hosting import host_has_room, what_moved
from outsize.strategies import compose
from outsize.strategies.offload import weights_of
from outsize.strategies.step import Step, Terms
from outsize.strategies.swap.traffic import Meter
from outsize.tasks import chapter_of
from outsize.train.loop import Position

QUIET = Reporter("quiet")


def test_room_is_what_the_job_allows_and_the_machine_has() -> None:
    plan = Plan("train", 1, 1, 1, True, (), swap=Swap((), 600), offload=Offload((), 500))
    assert host_has_room(plan, LimitsSection())
    assert host_has_room(plan, LimitsSection(host_memory="1100B"))
    assert not host_has_room(plan, LimitsSection(host_memory="1099B"))
    assert not host_has_room(replace(plan, swap=Swap((), 1 << 60)), LimitsSection())
    assert host_has_room(plan.plain(), LimitsSection(host_memory="1B"))


def test_a_step_that_moves_nothing_tells_nothing() -> None:
    assert what_moved(Meter(), QUIET) == {}


def _moving(monkeypatch: pytest.MonkeyPatch, *sizes: tuple[str, int]) -> None:
    """Let the planner move tensors to host memory, as it does where there is a GPU."""
    make_plans = preparing.make_plans
    moved = tuple(PlannedSwap((path, 0, 0), size_bytes, None, None) for path, size_bytes in sizes)
    swap = Swap(moved, sum(each.size_bytes for each in moved))

    def planned(*args: Any) -> Plans:
        plans = make_plans(*args)
        return replace(plans, train=replace(plans.train, swap=swap))

    monkeypatch.setattr(preparing, "make_plans", planned)


def _lines(job_path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job_path.parent / name / "metrics.jsonl").read_text().splitlines()]


def test_a_training_that_moves_tells_how_much_in_every_epoch(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = trained(job_path, "plain")
    size_bytes = 2 * 4 * 96 * 96 * 4
    _moving(monkeypatch, ("encoder.0.1", size_bytes), ("encoder.0.3", size_bytes))
    moved, plan = trained(job_path, "moved")
    assert plan["swap"]["pinned_bytes"] == 2 * size_bytes  # type: ignore[index]
    assert all(torch.equal(moved[name], value) for name, value in plain.items())
    lines = _lines(job_path, "moved")
    assert not [line for line in lines if line["kind"] == "plan"]
    epochs = [line["moved"] for line in lines if line["kind"] == "epoch"]
    assert len(epochs) == 2
    for each in epochs:
        assert each["num_out"] == each["num_in"] == 2 * each["num_forwards"] > 0
        assert each["out_bytes"] == each["in_bytes"] == each["num_out"] * size_bytes
        assert each["most_pinned_bytes"] == each["planned_pinned_bytes"] == 2 * size_bytes
        assert each["num_full"] == each["num_unmet"] == each["num_changed"] == 0
    assert "Moved to host memory" in make_page(
        [job_path.parent / "moved"], chapter_of, version="1", when="now"
    )


def test_a_plan_that_host_memory_no_longer_holds_is_made_anew(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ["train.tile_px=96", f"run={(job_path.parent / 'again').as_posix()}", "limits.tile_px=16"]
    run = RunFolder(job_path.parent / "again")
    train(job_path, overrides=every, device_name="cpu", mode="new", reporter=QUIET)
    plans = json.loads(run.plan.read_text())
    plans["train"]["swap"] = {"moved": [], "pinned_bytes": 1 << 60}
    run.plan.write_text(json.dumps(plans))
    monkeypatch.setattr(training, "fit_job", lambda *_: Position())
    train(job_path, overrides=every, device_name="cpu", mode="resume", reporter=QUIET)
    assert json.loads(run.plan.read_text())["train"]["swap"] is None


def _on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the planner leave weights on the host."""
    make_plans = preparing.make_plans

    def planned(*args: Any) -> Plans:
        plans = make_plans(*args)
        return replace(plans, train=replace(plans.train, offload=Offload(("encoder.0", "decoder.1"))))

    monkeypatch.setattr(preparing, "make_plans", planned)


def test_a_training_with_weights_on_the_host_leaves_the_same_files_and_is_resumed(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = trained(job_path, "plain")
    _on_host(monkeypatch)
    run = RunFolder(job_path.parent / "host")
    every = ["train.tile_px=96", f"run={run.path.as_posix()}", "limits.tile_px=16"]
    validate, num_epochs = validating.validate, 0

    def stops(*args: Any) -> Any:
        nonlocal num_epochs
        num_epochs += 1
        if num_epochs == 2:
            raise KeyboardInterrupt
        return validate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(validating, "validate", stops)
        with pytest.raises(KeyboardInterrupt):
            train(job_path, overrides=every, device_name="cpu", mode="new", reporter=QUIET)
    train(job_path, overrides=every, device_name="cpu", mode="resume", reporter=QUIET)
    assert json.loads(run.plan.read_text())["train"]["offload"]["blocks"] == ["encoder.0", "decoder.1"]
    found = load_file(run.last)
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="this torch cannot start over")
@pytest.mark.parametrize("fails_in", [pytest.param("forward", marks=pytest.mark.long), "backward"])
def test_memory_that_runs_out_with_weights_on_the_host_costs_a_step(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    plain, _ = trained(job_path, "plain")
    _on_host(monkeypatch)
    task_of, make, num_steps = shortage.train_task, compose.compose, 0

    def with_link(*args: Any) -> StepRequest:
        return replace(task_of(*args), link=Link(1e9, 1e9), weights=weights_of(args[1]))

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")

    def failing(model: nn.Module, *args: Any, **settings: Any) -> Step:
        step, block = make(model, *args, **settings), model.get_submodule("encoder.0")

        def run(batch: Batch, *, last: bool) -> Terms:
            nonlocal num_steps
            num_steps += 1
            if num_steps != 3:
                return step(batch, last=last)
            hook = block.register_forward_hook if fails_in == "forward" else block.register_full_backward_hook
            handle = hook(fail)
            try:
                return step(batch, last=last)
            finally:
                handle.remove()

        return run

    monkeypatch.setattr(compose, "compose", failing)
    monkeypatch.setattr(shortage, "train_task", with_link)
    found, plan = trained(job_path, "short")
    assert plan["offload"]
    assert "weights and optimizer in host memory" in str(plan["why"])
    assert "memory ran out: " in RunFolder(job_path.parent / "short").metrics.read_text()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("anew", [True, False])
def test_memory_that_runs_out_with_weights_on_the_host_ends_the_run_with_one_line_where_nothing_helps(
    job_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    _on_host(monkeypatch)
    monkeypatch.setattr("outsize.strategies.offload.can_begin_anew", lambda _: anew)

    def failing(*_: Any, **__: Any) -> Step:
        def run(batch: Batch, *, last: bool) -> Terms:
            raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")

        return run

    monkeypatch.setattr(compose, "compose", failing)
    told = "no tighter way is left" if anew else "weights are on the host, .* go on with --resume"
    with pytest.raises(PlanError, match=told):
        trained(job_path, "short")
