"""A real step before planning: what is run, what is left alone, and what the plan then goes by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outsize.commands import planning, profiling
from outsize.commands.planning import Situation, facts_on, situation_named, taught
from outsize.commands.profiling import learn_from_shortage, learn_here, real_step
from outsize.job import Job, load_job
from outsize.measure import profiled
from outsize.measure.machine import look_at_machine
from outsize.models import build_model
from outsize.plan.machines import find_machine
from outsize.plan.times import CLASSES, Clock, Learnt
from outsize.progress import Reporter
from outsize.strategies import fused

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
    monkeypatch.setattr(profiled, "cache_folder", lambda: tmp_path / "cache")
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
    monkeypatch.setattr(profiling.copy, "deepcopy", lambda each: copies.append(each) or each)  # type: ignore[func-returns-value]
    weight = next(model.parameters()).detach().clone()
    real_step(job, model, (2, 3, 32, 32), _CPU, bf16=False).run()
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


def test_sizes_fall_by_halves() -> None:
    assert list(profiling._sizes(5, 256)) == [(5, 256), (3, 256), (2, 256), (1, 256), (1, 128), (1, 64)]
    assert list(profiling._sizes(1, 60)) == [(1, 60)]


def test_only_a_gpu_that_is_here_is_asked(
    job: Job, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "learn_here", lambda *_, **__: pytest.fail("a step was run"))
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
    monkeypatch.setattr(fused, "fusing", lambda _: True)
    monkeypatch.setattr(profiling, "learn_here", lambda *_, **__: _LEARNT)
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
    monkeypatch.setattr(profiling, "_learn", lambda *_: _LEARNT)
    learnt = learn_here(job, model, 3, where, step_of, _QUIET)
    assert learnt == _LEARNT
    monkeypatch.setattr(profiling, "_learn", lambda *_: pytest.fail("it is remembered"))
    for more, share in (
        (1.1, 0.91 / 1.1),
        (1.02, 0.91 / 1.1),
        (5.0, 0.75),
    ):  # at least what any real step has shown
        learn_from_shortage(job, model, 3, replace(where, learnt=learnt), more)
        found = learn_here(job, model, 3, where, step_of, _QUIET)
        assert found == replace(_LEARNT, usable_share=pytest.approx(share))
