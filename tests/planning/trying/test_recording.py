"""When a step is recorded as one CUDA graph: where that is faster, and its memory can be spared."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outsize import strategies
from outsize.job import Job, load_job
from outsize.models import build_model
from outsize.plan.effort import Budget, Effort
from outsize.plan.plan import Plan, Recompute, Rejected
from outsize.planning.situation import situation_named
from outsize.planning.trying import graph_trial, recording
from outsize.planning.trying.graph_trial import GraphTrial, Recorded, cannot_be, tried, try_aside
from outsize.planning.trying.recording import paged_as_tried, recorded_where_faster
from outsize.progress import Reporter
from outsize.strategies.cudagraph.pages.pages import NO_MEMORY

GIB = 2**30
TRAIN = Plan("train", 2, limit_bytes=16 * GIB, peak_bytes=4 * GIB, exact=True, why=("it fits",), step_s=0.05)
PREDICT = replace(TRAIN, purpose="predict", peak_bytes=2 * GIB)
FASTER = Recorded(called_s=0.06, replayed_s=0.03, held_bytes=5 * GIB)


@pytest.fixture(autouse=True)
def _a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outsize.measure.remembered.fingerprint", lambda _: "a GPU")
    monkeypatch.setattr("outsize.measure.remembered.is_shared", lambda _: False)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    path = tmp_path / "job.toml"
    text = '[data]\nimages = ["a.tif"]\nlabels = "b.tif"\n[[data.classes]]\nname = "a"\nvalue = 0\n'
    path.write_text(text + '[[data.classes]]\nname = "b"\nvalue = 1\n[model]\nname = "unet"\n[train]\n')
    return load_job(path, [])


def _plan(job: Job, monkeypatch: pytest.MonkeyPatch, found: Recorded, **changes: Any) -> Plan:
    where = replace(situation_named("h200", 1, "bf16"), device=torch.device("cuda"))
    monkeypatch.setattr(recording, "try_aside", lambda _, **__: found)
    monkeypatch.setattr("outsize.measure.remembered.cache_folder", lambda: None)
    plan = replace(TRAIN, **changes)
    made = recorded_where_faster(job, nn.Conv2d(3, 2, 1), 3, plan, PREDICT, where, Reporter("quiet"))
    assert made.graph or replace(made, rejected=plan.rejected, step_s=plan.step_s) == plan
    return made


def test_a_faster_recording_is_taken_and_its_figures_are_told(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(job, monkeypatch, FASTER)
    assert plan.graph
    assert (plan.step_s, plan.peak_bytes) == (0.03, 5 * GIB)
    assert "30.0 ms in place of 60.0 ms seen here" in plan.why[-1]
    assert not plan.plain().graph


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        (cannot_be("it waits for the GPU"), {}),
        (replace(FASTER, replayed_s=0.062), {}),  # not worth the memory
        (replace(FASTER, held_bytes=139 * GIB), {}),  # no room for a validation beside it
        (FASTER, {"micro_batches": 2}),
        (FASTER, {"step_s": 1.0}),  # long kernels
    ],
)
def test_else_it_is_called_as_it_is(
    found: Recorded, changes: dict[str, Any], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(job, monkeypatch, found, **changes)
    assert not plan.graph
    assert [each.what for each in plan.rejected] == (
        [] if changes else ["the step recorded as one CUDA graph"]
    )


def test_what_saves_memory_is_recorded_and_let_go_for_a_validation(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Recompute(saved=(("a", 0, 0),))
    large = replace(FASTER, held_bytes=139 * GIB)  # more than tensors may take: with gaps, as it was tried
    plan = _plan(job, monkeypatch, large, recompute=again)
    assert plan.graph
    assert plan.peak_bytes == TRAIN.peak_bytes
    assert not _plan(job, monkeypatch, large).graph


def test_a_job_may_forbid_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    train = job.train.model_copy(update={"graph": False})
    assert not _plan(job.model_copy(update={"train": train}), monkeypatch, FASTER).graph


def test_what_was_found_is_remembered_and_so_is_that_it_cannot_be(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = replace(situation_named("h200", 1, "bf16"), device=torch.device("cuda"))
    monkeypatch.setattr("outsize.measure.remembered.cache_folder", lambda: tmp_path)
    answers, models = [FASTER, cannot_be("why")], [nn.Conv2d(3, 2, 1), nn.Conv2d(3, 4, 1)]
    monkeypatch.setattr(recording, "try_aside", lambda _, **__: answers.pop(0))

    def plan(model: nn.Module) -> Plan:
        return recorded_where_faster(job, model, 3, TRAIN, PREDICT, where, Reporter("quiet"))

    first = [plan(model).graph for model in models]
    assert first == [True, False]
    assert answers == []
    assert [plan(model).graph for model in models] == first  # and nothing was tried: no answers are left
    for path in tmp_path.glob("graph-*.json"):
        path.write_text('{"called_s": -1}')
    answers += [cannot_be("why")] * 2  # what is broken is tried again
    assert not any(plan(model).graph for model in models)
    assert answers == []


def test_what_was_found_is_forgotten_with_the_code_of_any_strategy(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = replace(situation_named("h200", 1, "bf16"), device=torch.device("cuda"))
    code = tmp_path / "strategies"
    shutil.copytree(Path(strategies.__file__).parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(strategies, "__path__", [str(code)])
    monkeypatch.setattr("outsize.measure.remembered.cache_folder", lambda: tmp_path)
    num_trials = 0

    def try_it(_: GraphTrial, **__: object) -> Recorded:
        nonlocal num_trials
        num_trials += 1
        return FASTER

    monkeypatch.setattr(recording, "try_aside", try_it)
    model = nn.Conv2d(3, 2, 1)
    rooms = sorted(path for path in code.rglob("*") if path.is_dir())
    assert len(rooms) >= 7
    for number, path in enumerate((code / "compose.py", *(max(room.glob("*.py")) for room in rooms)), 1):
        path.write_text(path.read_text() + "\n")
        for _ in range(2):  # the second time nothing is tried
            recorded_where_faster(job, model, 3, TRAIN, PREDICT, where, Reporter("quiet"))
            assert num_trials == number, path


@pytest.mark.parametrize("found", [FASTER, cannot_be("it keeps tensors")])
def test_a_step_that_has_room_only_by_pages_is_tried_and_its_time_told(
    found: Recorded, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = replace(situation_named("h200", 1, "bf16"), device=torch.device("cuda"))
    monkeypatch.setattr(recording, "try_aside", lambda _, **__: found)
    monkeypatch.setattr("outsize.measure.remembered.cache_folder", lambda: None)
    paged = replace(TRAIN, graph=True, paged=True)
    step, quiet = nn.Conv2d(3, 2, 1), Reporter("quiet")
    made = paged_as_tried(job, step, 3, paged, where, quiet)
    if found.why_not:
        assert made == Rejected("a recorded step, memory by pages", "it keeps tensors")
        return
    assert isinstance(made, Plan)
    assert made.step_s == FASTER.replayed_s
    assert made.why[-1] == "recorded, memory by pages: 30.0 ms seen here"
    assert recorded_where_faster(job, step, 3, made, PREDICT, where, quiet) is made  # no second trial
    assert paged_as_tried(job, step, 3, TRAIN, where, quiet) is TRAIN
    assert paged_as_tried(job, step, 3, paged, replace(where, device=None), quiet) is paged


def test_a_trial_by_pages_that_finds_no_memory_is_remembered_unless_another_process_has_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = GraphTrial(job, nn.Conv2d(3, 2, 1), 3, replace(TRAIN, paged=True), False, torch.device("cpu"))
    for text, passes in (("it keeps tensors", False), (f"cuMemCreate: {NO_MEMORY}", True)):

        def fail(*_: object, text: str = text, **__: object) -> None:
            raise torch.OutOfMemoryError(text)

        monkeypatch.setattr(graph_trial, "_ran", fail)
        found = tried(trial)
        assert (found.why_not, found.is_passing) == (text, passes)


def test_a_trial_that_fails_in_its_process_says_why(job: Job) -> None:
    trial = GraphTrial(job, nn.Conv2d(3, 2, 1), 3, TRAIN, False, torch.device("cuda", 0))
    if torch.cuda.is_available():
        pytest.skip("this machine can")
    assert try_aside(trial).why_not
    unsendable = nn.Conv2d(3, 2, 1)
    unsendable.register_forward_hook(lambda *_: None)
    assert "cannot be sent" in try_aside(replace(trial, model=unsendable)).why_not


def test_both_ways_are_run_from_the_same_weights_and_compared(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 7)
    small = job.train.model_copy(update={"tile_px": 32, "batch": 2})
    model = build_model("unet", num_classes=2, in_channels=3, width=4, levels=2)
    trial = GraphTrial(job.model_copy(update={"train": small}), model, 3, TRAIN, False, torch.device("cpu"))
    found = tried(trial)  # a CPU records nothing, so both are the same
    assert (found.why_not, found.held_bytes) == ("", 7)
    for again, why_not in ((0.9, "it does not train alike"), (0.85, "")):  # plain ones differ as much
        losses = iter([(0.05, [1.0, 0.8]), (0.1, [1.0, 0.9]), (0.09, [1.0, again])])
        monkeypatch.setattr(graph_trial, "_run", lambda *_, losses=losses: next(losses))
        found = tried(trial)
        assert found.why_not.startswith(why_not)
        assert found.called_s == (0.0 if why_not else 0.09)


@pytest.mark.parametrize("paged", [False, True])
def test_a_recording_that_is_not_worth_its_trial_is_not_tried(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paged: bool
) -> None:
    where = replace(situation_named("h200", 1, "bf16"), device=torch.device("cuda"))
    monkeypatch.setattr("outsize.measure.remembered.cache_folder", lambda: tmp_path)
    waited: list[float] = []

    def try_it(_: GraphTrial, *, patience_s: float, tick: object) -> Recorded:
        waited.append(patience_s)
        return FASTER

    monkeypatch.setattr(recording, "try_aside", try_it)
    model, quiet, plan = nn.Conv2d(3, 2, 1), Reporter("quiet"), replace(TRAIN, paged=paged, graph=paged)

    def reason(effort: Effort) -> str:
        if paged:
            found = paged_as_tried(job, model, 3, plan, where, quiet, effort)
            return found.why if isinstance(found, Rejected) else ""
        made = recorded_where_faster(job, model, 3, plan, PREDICT, where, quiet, effort)
        return "" if made.graph else made.rejected[-1].why

    assert reason(Effort(Budget(20.0, lambda: 0.0), 10)).startswith("not tried: 10 steps take 500.0 ms")
    assert reason(Effort(Budget(1.0, lambda: 0.0), 10**6)).startswith("not tried: to try it takes about")
    assert waited == []  # nor is it remembered that it cannot be
    assert reason(Effort(Budget(20.0, lambda: 0.0), 10**6)) == ""
    assert waited == [20.0]
    assert reason(Effort(Budget(1.0, lambda: 0.0), 10)) == ""  # what is known costs no time
