"""What is wrong with a job is told before anything is computed: rates, a real step, a trial, statistics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio
from tests.conftest import write_job

from outsize.commands import bench, plan, train
from outsize.commands.data import check
from outsize.data.catalogue import open_data
from outsize.data.checking.census import refuse_unlearnable
from outsize.errors import DataError, OutsizeError
from outsize.job import load_job
from outsize.plan.machines import find_machine
from outsize.progress import Reporter

QUIET = Reporter("quiet")
Verb = Callable[[Path, tuple[str, ...]], object]


def _train(path: Path, overrides: tuple[str, ...]) -> None:
    train.train(path, overrides=overrides, device_name="cpu", mode="new", reporter=QUIET)


def _plan(path: Path, overrides: tuple[str, ...]) -> None:
    plan.plan(path, overrides=overrides, device_name="cpu", reporter=QUIET)


def _bench(path: Path, overrides: tuple[str, ...]) -> None:
    every = {"out": None, "budgets": None, "ways": "plain", "rounds": 1}
    bench.memory(path, overrides=overrides, device_name="cpu", reporter=QUIET, **every)


VERBS: dict[str, Verb] = {"train": _train, "plan": _plan, "bench": _bench}


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that takes long fail the test."""
    for name in (
        "outsize.measure.machine.machine_rates",
        "outsize.planning.jobs.preparing.taught",
        "outsize.planning.jobs.preparing.make_plans",
        "outsize.planning.jobs.preparing.recorded_where_faster",
        "outsize.planning.trying.profiling.see",
        "outsize.planning.trying.try_compiled",
        "outsize.data.checking.check_data",
    ):
        monkeypatch.setattr(name, lambda *_, name=name, **__: pytest.fail(f"{name} was begun"))


MISTAKES = {
    "model": (("model.name='unett'",), "unknown model"),
    "option": (("model.depth=3",), "unknown option of model unet: found 'depth'"),
    "option of a value": (("model.levels=0",), "levels"),
    "phase": (("train.phases=[{trainable=['tail']}]",), "train.phases.trainable matches nothing"),
    "output": (("train.phases=[{output='encoder'}]",), "train.phases.output is not known"),
    "offsets": (
        ("train.class_weights='log'", "train.phases=[{epochs=1},{epochs=1,log_offset=1.5}]"),
        "train.phases.log_offset changes",
    ),
    "bands": (("data.bands=['blue','green','red','thermal']",), "thermal"),
    "core": (("limits.tile_px=65",), "limits.tile_px does not fit"),
    "halo": (("limits.halo_px=3",), "tile halo is too short"),
    "missing scene": (("data.val=['nowhere/*.tif']",), "nowhere"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_tells_mistakes_first(verb: str, job_path: Path, nothing_computed: None) -> None:
    for name, (overrides, text) in MISTAKES.items():
        if name in ("core", "halo"):
            continue
        with pytest.raises(OutsizeError) as caught:
            VERBS[verb](job_path, overrides)
        assert text in str(caught.value), name


@pytest.mark.parametrize(("name", "verb"), [("core", "plan"), ("halo", "train")])
def test_limits_are_looked_at_before_a_step_is_run(
    name: str, verb: str, job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outsize.planning.jobs.preparing.taught", lambda *_: pytest.fail("a step was begun"))
    monkeypatch.setattr("outsize.measure.machine.machine_rates", lambda *_, **__: find_machine("h200").rates)
    overrides, text = MISTAKES[name]
    with pytest.raises(OutsizeError, match=text):
        VERBS[verb](job_path, overrides)


def test_weights_to_start_from_are_looked_at_first(
    job_path: Path, trained_run: Path, tmp_path: Path, nothing_computed: None
) -> None:
    nowhere = f"train.init='{(tmp_path / 'nowhere').as_posix()}'"
    with pytest.raises(OutsizeError, match="nowhere"):
        _train(job_path, (nowhere,))
    other = (f"train.init='{trained_run.as_posix()}'", "model.width=6", "data.bands=['nir']")
    with pytest.raises(OutsizeError, match=r"bands|fits"):
        _train(job_path, other)


@pytest.fixture
def own_job(tmp_path: Path, scenes: Path) -> Path:
    """A job on scenes that the test may spoil."""
    return write_job(tmp_path / "job.toml", Path(shutil.copytree(scenes, tmp_path / "scenes")))


def _relabel(job_path: Path, old: int, new: int) -> None:
    for path in (job_path.parent / "scenes").glob("train-*_labels.tif"):
        with rasterio.open(path, "r+") as file:
            values = file.read(1)
            values[values == old] = new
            file.write(values, 1)


@pytest.mark.parametrize(
    ("new", "text"), [(2, "class '.*' is empty"), (77, "label value outside the classes")]
)
def test_labels_are_looked_through_first(own_job: Path, nothing_computed: None, new: int, text: str) -> None:
    _relabel(own_job, 1, new)
    with pytest.raises(DataError, match=text):
        _train(own_job, ())
    assert not (own_job.parent / "run").exists()


def test_a_missing_label_file_is_told_first(own_job: Path, nothing_computed: None) -> None:
    (own_job.parent / "scenes" / "train-0_labels.tif").unlink()
    for verb in VERBS.values():
        with pytest.raises(OutsizeError, match="train-0"):
            verb(own_job, ())


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_check_has_found_is_told_by_every_verb(
    verb: str, own_job: Path, request: pytest.FixtureRequest
) -> None:
    _relabel(own_job, 1, 2)
    with pytest.raises(DataError, match="is empty"):
        check(own_job, overrides=(), reporter=QUIET)
    request.getfixturevalue("nothing_computed")
    with pytest.raises(DataError, match="is empty"):
        VERBS[verb](own_job, ())


def test_check_tells_options_of_the_model_before_data(job_path: Path) -> None:
    with pytest.raises(OutsizeError, match="unknown option of model unet: found 'depth'"):
        check(job_path, overrides=("model.depth=3", "data.train=['nowhere.tif']"), reporter=QUIET)


def test_labels_are_read_no_further_than_they_must(
    job_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(job_path)
    splits = open_data(job.data, seed=1, halo_px=0, cache=tmp_path)
    many = splits.__class__(splits.train * 50, splits.val, splits.test)
    monkeypatch.setattr("outsize.data.checking.census._SURELY_PX", 1)
    with QUIET.bar("classes", 50, "scene") as bar:
        refuse_unlearnable(job.data, many, num_threads=1, bar=bar)
    assert bar.done == 1  # every class is in the first
