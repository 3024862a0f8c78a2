"""A real step before planning: what is run, what is left alone, and what the plan then goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outsize.job import Job, load_job
from outsize.measure import learning, remembered
from outsize.measure.learning import lessons
from outsize.measure.machine import look_at_machine
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.effort import Budget, Effort
from outsize.plan.machines import find_machine
from outsize.plan.times import CLASSES, Clock, Learnt
from outsize.planning.jobs import planning
from outsize.planning.jobs.planning import facts_on, taught
from outsize.planning.situation import Situation, situation_named
from outsize.planning.trying import profiling
from outsize.planning.trying.child import TookTooLong
from outsize.planning.trying.profiling import learn_from_shortage, learn_here, real_step
from outsize.progress import Reporter
from outsize.strategies.kernels.norm import fused
from outsize.train import made_up

_CPU = torch.device("cpu")
_CLOCK = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
_QUIET = Reporter("quiet")
_LEARNT = Learnt(dict.fromkeys(CLASSES, 2.0), 1e-3, 0.91, 2, 64)


@pytest.fixture
def job(job_path: Path) -> Job:
    return load_job(job_path, [])


@pytest.fixture
def model(job: Job) -> torch.nn.Module:
    return build_model("unet", num_classes=len(job.data.classes), in_channels=3, levels=2, width=4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remembered, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_a_step_is_run_on_a_copy_and_leaves_no_trace(job: Job, model: torch.nn.Module) -> None:
    where = Situation(look_at_machine(_CPU), _CLOCK.rates, bf16=False, device=_CPU)
    step_of = planning._step_of(job, model, 3, where)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.get_rng_state()
    learnt = learn_here(job, model, 3, where, step_of, _QUIET)
    assert learnt is not None
    assert (learnt.batch, learnt.side_px) == (job.train.batch, job.train.tile_px)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_step_trains_its_copy(job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[torch.nn.Module] = []
    monkeypatch.setattr(made_up.copy, "deepcopy", lambda each: copies.append(each) or each)  # type: ignore[func-returns-value]
    weight = next(model.parameters()).detach().clone()
    real_step(job, model, (2, 3, 32, 32), _CPU, bf16=False)()
    assert copies == [model]
    assert not torch.equal(next(model.parameters()), weight)


def test_without_room_a_smaller_step_is_run(
    job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, ...]] = []

    def cramped(job: Job, model: object, shape: tuple[int, ...], device: object, **_: object) -> None:
        tried.append(shape)
        raise torch.OutOfMemoryError("no room")

    where = Situation(look_at_machine(_CPU), _CLOCK.rates, bf16=False, device=_CPU)
    step_of = planning._step_of(job, model, 3, where)
    monkeypatch.setattr(profiling, "real_step", cramped)
    assert learn_here(job, model, 3, where, step_of, _QUIET) is None
    batch, side_px = job.train.batch, job.train.tile_px
    assert tried[0] == (batch, 3, side_px, side_px)
    assert [shape[0] * shape[2] ** 2 for shape in tried] == sorted(
        {shape[0] * shape[2] ** 2 for shape in tried}, reverse=True
    )


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[profiling.ProfiledStep]:
    """A GPU that is not here: what would be run on it is listed, and taken to have room."""
    subjects: list[profiling.ProfiledStep] = []
    monkeypatch.setattr("outsize.measure.memory.free_gpu_bytes", lambda _: 100 * 2**30)
    monkeypatch.setattr(lessons, "fingerprint", lambda _: "a GPU")
    monkeypatch.setattr("outsize.measure.remembered.is_shared", lambda _: False)
    monkeypatch.setattr(fused, "_builds", lambda _: False)

    def seen(subject: profiling.ProfiledStep, *_: object) -> str:
        subjects.append(subject)
        return "a step"

    def taught_by(*_: object, batch: int, side_px: int) -> Learnt:
        return replace(_LEARNT, batch=batch, side_px=side_px)

    monkeypatch.setattr(profiling, "_seen", seen)
    monkeypatch.setattr(learning, "taught_by", taught_by)
    return subjects


def _there(job: Job, **limits: int) -> tuple[Job, Situation]:
    named = situation_named("h200", 1, "fp32")
    asked = job.model_copy(
        update={
            "limits": job.limits.model_copy(update=limits),
            "train": job.train.model_copy(update={"tile_px": 512, "batch": 8, "graph": False}),
        }
    )
    return asked, replace(named, device=torch.device("cuda", 0))


def test_what_is_run_stays_within_the_limit_of_the_job(
    job: Job, model: torch.nn.Module, on_gpu: list[profiling.ProfiledStep]
) -> None:
    asked, where = _there(job)
    step_of = planning._step_of(asked, model, 3, where)
    whole_bytes = StepCost(step_of(8, 512)).peak_bytes()
    assert taught(asked, model, 3, where, _QUIET).note == ""
    assert on_gpu[-1].shape == (8, 3, 512, 512)
    limit_bytes = whole_bytes // 2
    tight, where = _there(job, gpu_memory=limit_bytes)
    found = taught(tight, model, 3, where, _QUIET)  # what was learnt before is still known
    assert found.note == ""
    assert len(on_gpu) == 1
    torch.nn.init.zeros_(next(model.parameters()))
    other = build_model("unet", num_classes=len(job.data.classes), in_channels=3, levels=2, width=5)
    found = taught(tight, other, 3, where, _QUIET)
    subject = on_gpu[-1]
    assert subject.shape[0] < 8
    assert 0 < subject.cap_bytes <= limit_bytes
    assert StepCost(step_of(subject.shape[0], 512)).peak_bytes() <= 0.85 * subject.cap_bytes
    assert f"times are drawn from a real step of {subject.shape[0]} x 512 px within the limit" in found.note
    facts = facts_on(other, 3, found)
    plan = planning.make_plans(tight, other, 3, facts, (512, 512), found).train
    assert found.note in plan.why
    # with more room the step itself is run
    roomy, where = _there(job)
    assert taught(roomy, other, 3, where, _QUIET).note == ""
    assert on_gpu[-1].shape[0] == 8


def test_nothing_is_run_where_nothing_has_room(
    job: Job, model: torch.nn.Module, on_gpu: list[profiling.ProfiledStep]
) -> None:
    tight, where = _there(job, gpu_memory=2**18)
    found = taught(tight, model, 3, where, _QUIET)
    assert not on_gpu
    assert found.learnt is None
    assert "no real step was run within the limit of 256.0 KiB" in found.note


def test_a_profile_that_takes_too_long_is_ended_and_told(
    job: Job,
    model: torch.nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    on_gpu: list[profiling.ProfiledStep],
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked, where = _there(job)
    patience: list[float] = []

    def endless(*_: object, patience_s: float, tick: Callable[[], object]) -> None:
        patience.append(patience_s)
        tick()
        raise TookTooLong("no answer from another process in 24.0 s")

    monkeypatch.undo()
    monkeypatch.setattr("outsize.measure.memory.free_gpu_bytes", lambda _: 100 * 2**30)
    monkeypatch.setattr(lessons, "fingerprint", lambda _: "a GPU")
    monkeypatch.setattr(remembered, "cache_folder", lambda: None)
    monkeypatch.setattr("outsize.measure.remembered.is_shared", lambda _: False)
    monkeypatch.setattr(fused, "_builds", lambda _: False)
    monkeypatch.setattr(profiling, "run_in_child", endless)
    monkeypatch.setattr(profiling, "see", lambda _: pytest.fail("it is not done here instead"))
    effort = Effort(Budget(24.0, lambda: 0.0))
    found = taught(asked, model, 3, where, Reporter("json"), effort)
    assert patience == [24.0]  # and no second one
    assert found.learnt is None
    assert "no real step was run for want of time" in found.note
    told = capsys.readouterr().out
    assert "running a real step of 8 x 512 px on cuda:0 to learn its time" in told
    assert '"title": "a real step of 8 x 512 px", "done": 1, "total": 24' in told
    assert "was not seen to its end" in told


def test_only_a_gpu_that_is_here_is_asked(
    job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outsize.planning.trying.learn_here", lambda *_, **__: pytest.fail("a step was run"))
    on_cpu = Situation(look_at_machine(_CPU), _CLOCK.rates, bf16=False, device=_CPU)
    assert taught(job, model, 3, on_cpu, _QUIET) == on_cpu
    named = situation_named("h200", 1, "bf16")
    found = taught(job, model, 3, named, _QUIET)
    assert found.fuse is not None  # found from shapes alone
    assert found.fuse.norms_with_relu
    assert replace(found, fuse=None) == named
    plain = job.model_copy(update={"train": job.train.model_copy(update={"fuse": False})})
    assert taught(plain, model, 3, named, _QUIET) == named


def test_a_plan_goes_by_what_was_learnt(
    job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = situation_named("h200", 1, "bf16")
    here = Situation(named.machine, named.rates, bf16=True, device=torch.device("cuda", 0))
    monkeypatch.setattr(fused, "_builds", lambda _: True)
    monkeypatch.setattr("outsize.planning.trying.learn_here", lambda *_, **__: _LEARNT)
    where = taught(job, model, 3, here, _QUIET)
    assert where.machine.usable_share == 0.91
    before, after = facts_on(model, 3, here), facts_on(model, 3, where)
    assert after.learnt == _LEARNT
    assert before.window.predict_s_per_px is not None
    assert after.window.predict_s_per_px == pytest.approx(2 * before.window.predict_s_per_px)
    assert after.window.host_s == pytest.approx(before.window.host_s * 1e-3 / named.rates.host_op_s)


def test_a_step_that_wanted_more_than_predicted_teaches_the_next_plan(
    job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Situation(look_at_machine(_CPU), _CLOCK.rates, bf16=False, device=_CPU)
    step_of = planning._step_of(job, model, 3, where)
    learn_from_shortage(job, model, 3, where, 1.1)  # of which nothing was learnt before
    monkeypatch.setattr(profiling, "_seen", lambda *_: "a step")
    monkeypatch.setattr(learning, "taught_by", lambda *_, **__: _LEARNT)
    learnt = learn_here(job, model, 3, where, step_of, _QUIET)
    assert learnt == _LEARNT
    monkeypatch.setattr(profiling, "_seen", lambda *_: pytest.fail("it is remembered"))
    for more, share in (
        (1.1, 0.91 / 1.1),
        (1.02, 0.91 / 1.1),
        (5.0, 0.75),
    ):  # at least what any real step has shown
        learn_from_shortage(job, model, 3, replace(where, learnt=learnt), more)
        found = learn_here(job, model, 3, where, step_of, _QUIET)
        assert found == replace(_LEARNT, usable_share=pytest.approx(share))
