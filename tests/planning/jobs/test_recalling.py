"""A plan that was made before is taken up where job, code and machine are the same, else it is made again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outsize.job import Job, load_job
from outsize.measure import remembered
from outsize.measure.machine import look_at_machine
from outsize.plan.machines import find_machine
from outsize.plan.plan import Rejected
from outsize.plan.times import Learnt
from outsize.planning.jobs import planning, preparing, recalling
from outsize.planning.jobs.groundwork import Groundwork, lay
from outsize.planning.jobs.preparing import plan_job
from outsize.planning.jobs.recalling import KeptPlans
from outsize.planning.situation import Situation, situation_named
from outsize.progress import Reporter
from outsize.tiles.halo import Halo, Obstacle, Reach, halo_from_dict

QUIET = Reporter("quiet")
_CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of findings for one test alone."""
    monkeypatch.setattr(preparing, "recall", recalling.recall)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outsize"


@pytest.fixture
def job(job_path: Path) -> Job:
    return load_job(job_path, ["train.tile_px=32"])


def _here() -> Situation:
    return Situation(look_at_machine(_CPU), find_machine("h200").rates, bf16=False, device=_CPU)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What takes long, by name, each time that it is done."""
    done: list[str] = []
    for where, name in (
        (preparing, "taught"),
        (preparing, "facts_on"),
        (preparing, "make_plans"),
        (preparing, "recorded_where_faster"),
    ):
        inner = getattr(where, name)

        def noting(*args: object, inner: object = inner, name: str = name, **how: object) -> object:
            done.append(name)
            return inner(*args, **how)  # type: ignore[operator]

        monkeypatch.setattr(where, name, noting)
    return done


def test_nothing_is_computed_the_second_time(
    job: Job, counted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan_job(job, _here(), QUIET)
    assert len(counted) == 4
    for name in ("outsize.measure.facts.derive", "outsize.measure.tracing.trace_step"):
        monkeypatch.setattr(name, lambda *_, name=name, **__: pytest.fail(f"{name} was begun"))
    second = plan_job(job, _here(), Reporter("json"))
    assert len(counted) == 4
    assert "planned before" in capsys.readouterr().out
    assert second.train_plan == first.train_plan
    assert second.predict_plan == first.predict_plan
    assert second.resident_bytes == first.resident_bytes
    assert replace(second.facts, machine=first.facts.machine) == first.facts
    assert second.splits == first.splits


def test_another_job_code_or_machine_is_planned_anew(
    job: Job, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = lay(job, QUIET)

    def plan(job: Job = job, ground: Groundwork = ground, where: Situation | None = None) -> int:
        before = len(counted)
        plan_job(job, where or _here(), QUIET, ground)
        return len(counted) - before

    assert (plan(), plan()) == (4, 0)
    for section, change in (("train", {"batch": 1}), ("limits", {"host_memory": 2**29})):
        other = job.model_copy(update={section: getattr(job, section).model_copy(update=change)})
        assert plan(other) == 4
    assert plan(ground=replace(ground, largest_px=(512, 512))) == 4
    assert plan(where=replace(_here(), bf16=True)) == 4
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "code_of", lambda *_: ["other code"])
        assert plan() == 4
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "fingerprint", lambda _: "another machine")
        assert plan() == 4
    assert plan() == 0


@pytest.fixture
def ground(job: Job) -> Groundwork:
    return lay(job, QUIET)


@pytest.fixture
def kept(job: Job, ground: Groundwork) -> KeptPlans:
    planned = plan_job(job, _here(), QUIET, ground)
    return KeptPlans(
        planned.where, planned.facts, planned.train_plan, planned.predict_plan, planned.resident_bytes
    )


def test_a_plan_that_no_longer_fits_is_made_anew(job: Job, ground: Groundwork, kept: KeptPlans) -> None:
    where = _here()
    assert recalling.recall(job, ground, where) == replace(
        kept, where=where, facts=replace(kept.facts, machine=where.machine)
    )
    little = replace(where.machine, free_bytes=kept.train.peak_bytes)
    assert recalling.recall(job, ground, replace(where, machine=little)) is None
    # with far more memory than there was another plan might be better
    tight = replace(kept, train=replace(kept.train, limit_bytes=2**29))
    recalling.keep(job, ground, tight)
    assert recalling.recall(job, ground, where) is None


def test_what_was_put_off_is_not_kept(job: Job, ground: Groundwork, kept: KeptPlans, folder: Path) -> None:
    (path,) = folder.glob("plan-*.json")
    path.unlink()
    later = Rejected("the step recorded as one CUDA graph", "not tried: ...: the next start tries it")
    recalling.keep(job, ground, replace(kept, train=replace(kept.train, rejected=(later,))))
    note = "no real step was run for want of time"
    recalling.keep(job, ground, replace(kept, where=replace(kept.where, note=note)))
    assert not list(folder.glob("plan-*.json"))
    recalling.keep(job, ground, kept)
    assert path.exists()


def test_a_file_that_makes_no_sense_is_not_taken_up(
    job: Job, ground: Groundwork, kept: KeptPlans, folder: Path
) -> None:
    (path,) = folder.glob("plan-*.json")
    good = json.loads(path.read_text())
    assert recalling.recall(job, ground, _here()) is not None
    spoilt: list[object] = [
        [],
        {},
        3,
        {**good, "resident_bytes": -1},
        {**good, "note": None},
        {**good, "pages": 3},
    ]
    for name, change in (
        ("train", {"peak_bytes": "much"}),
        ("train", {"step_s": -1.0}),
        ("predict", {"tiles": None}),
        ("predict", {"purpose": "train"}),
        ("facts", {"halo": {}}),
        ("facts", {"window": None}),
    ):
        spoilt.append({**good, name: {**good[name], **change}})
    for tree in spoilt:
        path.write_text(json.dumps(tree))
        assert recalling.recall(job, ground, _here()) is None, tree
    path.write_text("{")
    assert recalling.recall(job, ground, _here()) is None


def test_a_plan_for_a_gpu_goes_with_what_a_real_step_taught(
    job: Job, ground: Groundwork, kept: KeptPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "fingerprint", lambda _: "a GPU")
    monkeypatch.setattr("outsize.measure.shared.is_shared", lambda _: False)
    learnt = Learnt({"rest": 1.5}, 1e-5, 0.9, 2, 32, paces={"a": [1.0, 2.0]})
    named = situation_named("h200", 1, "fp32")
    here = replace(named, device=torch.device("cuda", 0))
    machine = replace(here.machine, usable_share=0.9)
    there = replace(here, learnt=learnt, machine=machine, pages=False, note="so it is")
    made = replace(kept, where=there, facts=replace(kept.facts, learnt=learnt, machine=machine))
    lessons: list[Learnt | None] = [learnt]
    monkeypatch.setattr("outsize.planning.trying.remembered_lesson", lambda *_: lessons[-1])
    made = replace(made, train=replace(made.train, limit_bytes=named.machine.free_bytes))
    made = replace(made, predict=replace(made.predict, limit_bytes=named.machine.free_bytes))
    recalling.keep(job, ground, made)
    assert recalling.recall(job, ground, here) == made
    lessons.append(replace(learnt, usable_share=0.8))  # a step wanted more than was predicted
    assert recalling.recall(job, ground, here) is None
    # where nothing was learnt there is a profile still to come
    recalling.keep(job, ground, replace(made, where=replace(there, learnt=None, note="x")))
    lessons.append(None)
    assert recalling.recall(job, ground, here) is None


def test_how_far_a_model_looks_is_found_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lay(job, QUIET).halo
    monkeypatch.setattr("outsize.measure.facts.derive", lambda *_: pytest.fail("it is known"))
    assert lay(job, QUIET).halo == first
    wide = job.model_copy(update={"model": job.model.model_copy(update={"name": "unet", "levels": 2})})
    monkeypatch.setattr("outsize.measure.facts.derive", lambda *_: (_ for _ in ()).throw(KeyError("asked")))
    with pytest.raises(KeyError, match="asked"):
        lay(wide, QUIET)


def test_a_halo_is_read_as_it_was_written() -> None:
    halo = Halo(Reach(3, 4), Reach(5, 6), 8, (Obstacle("a", "mean", "looks everywhere"),))
    tree = {
        "rows": {"before_px": 3, "after_px": 4},
        "cols": {"before_px": 5, "after_px": 6},
        "stride_px": 8,
        "obstacles": [{"module": "a", "kind": "mean", "reason": "looks everywhere"}],
    }
    assert halo_from_dict(tree) == halo
    with pytest.raises(ValueError, match="halo"):
        halo_from_dict({**tree, "stride_px": 0})


def test_a_step_is_followed_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    ground = lay(job, QUIET)
    step_of = planning._step_of(job, ground.model, 4, _here())
    facts = step_of(2, 32)
    monkeypatch.setattr("outsize.measure.tracing.trace_step", lambda *_, **__: pytest.fail("it is known"))
    learnt = Learnt({}, 1e-5, None, 2, 32)
    assert planning._step_of(job, ground.model, 4, _here())(2, 32) is facts
    assert planning._step_of(job, ground.model, 4, replace(_here(), learnt=learnt))(2, 32).ops
