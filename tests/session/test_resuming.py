"""A training goes on with the plan that it began with where that can be carried out, and else says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from outsize.commands.train import train
from outsize.errors import InUseError, OutputError, RunError
from outsize.job import load_job
from outsize.plan.plan import Fuse, unplanned
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session import training, validating
from outsize.session.resuming import _change, _differing, _has_fewer_parts, is_finished, resumes
from outsize.strategies.kernels.norm import fused
from outsize.train.loop import Position

_FUSE = json.loads(json.dumps(asdict(Fuse(norms_with_relu=("encoder.0.1",), pools=("pool",)))))


def _train(job_path: Path, mode: str, style: str = "quiet") -> RunFolder:
    run = job_path.parent / "run"
    overrides = [f"run={run.as_posix()}", "train.epochs=1", "train.samples_per_epoch=2"]
    return train(job_path, overrides=overrides, device_name="cpu", mode=mode, reporter=Reporter(style))


@pytest.mark.parametrize(
    ("num_ranks", "micro_batches", "has_fewer"),
    [(1, 3, False), (2, 3, False), (3, 3, True), (4, 2, True), (3, 2, False), (4, None, False)],
)
def test_micro_batches_that_ranks_cannot_share_are_found(
    num_ranks: int, micro_batches: int | None, has_fewer: bool
) -> None:
    """Six samples: three micro-batches of two, two of three."""
    plan = unplanned(micro_batches=micro_batches)
    assert _has_fewer_parts(plan, num_ranks, 6) == has_fewer


@pytest.fixture
def fusing_run(job_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose plan fuses layers, as if a GPU had begun it."""
    run = _train(job_path, "new")
    plans = json.loads(run.plan.read_text())
    plans["train"]["fuse"] = _FUSE
    run.plan.write_text(json.dumps(plans))
    monkeypatch.setattr(training, "fit_job", lambda *_: Position())
    return run


def _said(out: str) -> list[str]:
    events: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    return [each["text"] for each in events if each["event"] == "warning"]


@pytest.mark.parametrize("builds", [True, False])
def test_fused_layers_go_on_only_where_their_kernels_can_be_built(
    job_path: Path,
    fusing_run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    builds: bool,
) -> None:
    monkeypatch.setattr(fused, "_builds", lambda _: builds)
    _train(job_path, "resume", "json")
    warned = [text for text in _said(capsys.readouterr().out) if "began with" in text]
    assert json.loads(fusing_run.plan.read_text())["train"]["fuse"] == (_FUSE if builds else None)
    if builds:
        assert warned == []
    else:
        assert len(warned) == 1
        assert "fuses layers, which Triton cannot build here" in warned[0]
        assert "take longer and keep more" in warned[0]
        assert "with other rounding" in warned[0]


@pytest.mark.parametrize(
    ("why_not", "share", "told"),
    [
        (None, 0.9, ""),
        (None, 1.0, "no longer fits"),
        ("no compiler", 0.9, "by pages, which cannot be here (no compiler)"),
    ],
)
def test_memory_by_pages_may_be_filled_further_where_it_can_be_given(
    job_path: Path,
    fusing_run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    why_not: str | None,
    share: float,
    told: str,
) -> None:
    plans = json.loads(fusing_run.plan.read_text())
    limit_bytes = 10 * 2**30
    plans["train"] |= {"fuse": None, "graph": True, "paged": True, "peak_bytes": int(share * limit_bytes)}
    fusing_run.plan.write_text(json.dumps(plans))
    monkeypatch.setattr("outsize.strategies.cudagraph.why_not_paged", lambda: why_not)
    monkeypatch.setattr("outsize.plan.limits.limit_of", lambda *_: limit_bytes)
    _train(job_path, "resume", "json")
    warned = [text for text in _said(capsys.readouterr().out) if "began with" in text]
    assert json.loads(fusing_run.plan.read_text())["train"]["paged"] == (not told)
    assert bool(warned) == bool(told)
    assert all(told in text for text in warned)


@pytest.mark.parametrize(
    "spoilt",
    [
        "{}",
        "fuse",
        *(pytest.param(each, marks=pytest.mark.long) for each in ('{"train": {}}', '{"train": null}', "[]")),
    ],
)
def test_a_plan_that_is_none_is_refused(job_path: Path, fusing_run: RunFolder, spoilt: str) -> None:
    if spoilt == "fuse":
        spoilt = fusing_run.plan.read_text().replace(json.dumps(_FUSE), "3")
    fusing_run.plan.write_text(spoilt)
    with pytest.raises(RunError, match=r"plan\.json cannot be understood: found .*run `outsize plan` again"):
        _train(job_path, "resume")


def test_a_training_is_begun_gone_on_with_or_refused(job_path: Path, fusing_run: RunFolder) -> None:
    job = load_job(
        job_path, [f"run={fusing_run.path.as_posix()}", "train.epochs=1", "train.samples_per_epoch=2"]
    )
    assert resumes(fusing_run, job, "resume")
    assert not resumes(fusing_run, job, "overwrite")
    with pytest.raises(RunError, match="exists: found a training in it"):
        resumes(fusing_run, job, "new")
    empty = RunFolder(job_path.parent / "empty")
    assert not resumes(empty, job, "new")
    assert not resumes(empty, job, "resume")


@pytest.mark.parametrize("mode", ["new", "resume"])
def test_weights_without_a_state_are_not_lost(job_path: Path, mode: str) -> None:
    run = _train(job_path, "new")
    run.state.unlink()
    before = {path: path.read_bytes() for path in (run.best, run.last, run.metrics)}
    match = r"found weights of a training \(best.safetensors\), and no state.safetensors .*train.init=.*--overwrite"
    with pytest.raises(RunError, match=match):
        _train(job_path, mode)
    assert {path: path.read_bytes() for path in before} == before
    _train(job_path, "overwrite")
    assert run.state.exists()


@pytest.mark.parametrize("mode", ["new", "resume", "overwrite"])
def test_a_run_beside_its_job_is_refused_before_the_job_is_lost(job_path: Path, mode: str) -> None:
    text = "# a remark\n" + job_path.read_text()
    job_path.write_text(text)
    files = sorted(job_path.parent.rglob("*"))
    match = (
        "would overwrite its job .*--set run="
        if mode == "overwrite"
        else "overwrite its job|not outsize's own"
    )
    with pytest.raises(OutputError, match=match):
        train(
            job_path,
            overrides=[f"run={job_path.parent.as_posix()}"],
            device_name="cpu",
            mode=mode,
            reporter=Reporter("quiet"),
        )
    assert job_path.read_text() == text
    assert sorted(job_path.parent.rglob("*")) == files


def test_the_copy_of_the_job_in_a_run_may_be_given(job_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _train(job_path, "new")
    for mode in ("resume", "overwrite"):
        train(run.job, overrides=(), device_name="cpu", mode=mode, reporter=Reporter("quiet"))
    run.job.write_text("# a remark\n" + run.job.read_text())
    with pytest.raises(OutputError, match="would overwrite its job"):
        train(run.job, overrides=(), device_name="cpu", mode="resume", reporter=Reporter("quiet"))


def test_a_training_beside_another_one_is_refused(job_path: Path) -> None:
    run = _train(job_path, "new")
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    script = (
        "import sys; from pathlib import Path; from outsize.files.locks import holding\n"
        "with holding(Path(sys.argv[1]), 'run', 'train'):\n    print('held', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", script, str(run.lock)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for mode in ("new", "resume", "overwrite"):
            with pytest.raises(InUseError, match=f"is in use: found `outsize train`, process {other.pid} on"):
                _train(job_path, mode)
        other.kill()
    run.lock.unlink()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files


def test_what_differs_is_named_key_by_key(job_path: Path) -> None:
    before = load_job(job_path)
    now = load_job(
        job_path, ["train.lr=0.5", "model.width=99", "model.norm=none", "limits.tile_px=64", "seed=4"]
    )
    changed = [_change(key, *values) for key, values in _differing(before, now).items()]
    assert f"train.lr = 0.5 instead of {before.train.lr}" in changed
    assert f"model.width = 99 instead of {before.model.options['width']}" in changed
    assert "model.norm = 'none' instead of nothing" in changed
    assert "seed = 4 instead of 3" in changed
    assert len(changed) == 4  # other limits do not keep a training from going on
    (fewer,) = _differing(before, load_job(job_path, ["data.train=['x.tif']"])).items()
    assert _change(fewer[0], *fewer[1]) == "another data.train"


def test_a_finished_training_says_so(job_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _train(job_path, "new")
    weights = run.last.stat()
    _train(job_path, "resume", "json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not {"resume", "trained"} & {each["event"] for each in events}
    (told,) = [each for each in events if each["event"] == "finished"]
    assert "is finished after 1 step, and nothing was trained" in told["text"]
    assert f"train.init={run.path.as_posix()}" in told["text"]
    assert run.last.stat().st_mtime_ns == weights.st_mtime_ns


@pytest.mark.parametrize(
    ("position", "finished"),
    [
        ({"phase": 1, "epoch": 3}, True),
        ({"phase": 1, "epoch": 2}, False),
        ({"phase": 0, "epoch": 5}, False),
        ({"phase": 1, "epoch": 1, "stopped": True}, True),
        ({"phase": 0, "epoch": 1, "stopped": True}, False),
        ({"phase": 0, "epoch": 1, "spent_s": 120.0}, True),
        ({"phase": 0, "epoch": 1, "step": 2, "spent_s": 120.0}, False),  # nobody has scored that epoch
    ],
)
def test_when_a_training_is_finished(job_path: Path, position: dict[str, Any], finished: bool) -> None:
    job = load_job(job_path, ["train.phases=[{epochs = 5}, {epochs = 3}]", "train.max_minutes=2"])
    assert is_finished(job, asdict(Position(**position))) == finished


def test_a_training_that_broke_off_in_its_last_validation_is_scored_and_saved(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over, and there would else be no weights at all."""
    run = RunFolder(job_path.parent / "over")
    sizes = ("train.tile_px=32", "limits.tile_px=16", "train.samples_per_epoch=400", "train.batch=2")
    times = ("train.checkpoint_steps=1", "train.max_minutes=0.005", "train.epochs=3")
    every = [f"run={run.path.as_posix()}", *sizes, *times]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(validating, "validate", killed)
        with pytest.raises(KeyboardInterrupt):
            train(job_path, overrides=every, device_name="cpu", mode="new", reporter=Reporter("quiet"))
    train(job_path, overrides=every, device_name="cpu", mode="resume", reporter=Reporter("quiet"))
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    (scored,) = (line["step"] for line in lines if line["kind"] == "epoch")
    assert 0 < scored < 200
    assert run.best.exists()
    assert run.last.exists()
