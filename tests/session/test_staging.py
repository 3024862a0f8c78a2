"""A training in stages through all that the verb does: the checkpoints of one process, which go on any way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.conftest import write_job
from tests.ranks.gang import Gang
from tests.session.test_ranks import _distance, apart, train_as

from outsize.planning.planned import read_train_plan
from outsize.planning.situation import Sharing
from outsize.ranks import ALONE, World
from outsize.report.gather import gather
from outsize.report.sections.stages import show_stages
from outsize.runs import RunFolder

_NEAR = 1e-12


def staged(world: World, job: Path, run: Path, mode: str = "new", stop_at: int | None = None) -> str:
    """Train in two stages, as one of their ranks; more ranks are replicas."""
    return train_as(world, job, run, mode, stop_at, sharing=Sharing(stages=2))


@pytest.fixture(scope="module", params=["none", pytest.param("batch", marks=pytest.mark.long)])
def job(request: pytest.FixtureRequest, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A U-Net, in two epochs of four steps; with batch norm the whole batch goes through its stages at once."""
    folder = tmp_path_factory.mktemp("staged")
    return write_job(
        folder / "job.toml",
        scenes,
        **{
            "levels = 3\nwidth = 4": f'levels = 3\nwidth = 4\nnorm = "{request.param}"',
            "tile_px = 64\nbatch = 2": 'tile_px = 32\nbatch = 4\noptimizer = "sgd"\ncheckpoint_steps = 3',
            "samples_per_epoch = 8": "samples_per_epoch = 16",
        },
    )


@pytest.fixture(scope="module")
def alone(job: Path) -> Path:
    run = job.parent / "alone"
    assert train_as(ALONE, job, run) == "done"
    return run


def _same(one: Path, other: Path) -> None:
    assert apart(one, other) < _NEAR
    best, others = (load_file(RunFolder(each).best) for each in (one, other))
    assert max(_distance(each, others[name]) for name, each in best.items()) < _NEAR


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_stages_leave_the_files_of_one_process(
    size: int, job: Path, alone: Path, gang: Gang, tmp_path: Path
) -> None:
    run = tmp_path / "staged"
    assert gang.run(size, staged, job, run) == ["done"] * size
    pipeline = read_train_plan(RunFolder(run)).pipeline
    assert pipeline is not None
    assert pipeline.num_ranks == 2
    _same(alone, run)
    _drawn(run, pipeline.num_micro)


def _drawn(run: Path, num_micro: int) -> None:
    """One step was kept, as predicted and as measured, and the report draws both."""
    kept = json.loads(RunFolder(run).schedule.read_text())
    for name in ("predicted", "measured"):
        done = sorted((rank, doing, micro) for rank, doing, micro, *_ in kept[name])
        assert done == sorted(
            (rank, doing, micro)
            for rank in (0, 1)
            for doing in ("forward", "backward")
            for micro in range(num_micro)
        ), name
        assert all(began_s <= ended_s for *_, began_s, ended_s in kept[name])
    assert "measured, step 3: " in str(show_stages(gather(run)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [("plain", "staged"), ("staged", "plain"), ("both", "replicas"), ("replicas", "both")],
)
def test_a_training_goes_on_any_other_way(
    before: str, after: str, job: Path, alone: Path, gang: Gang, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def go(way: str, mode: str, stop_at: int | None = None) -> set[str]:
        if way == "plain":
            return {train_as(ALONE, job, run, mode, stop_at)}
        size = {"staged": 2, "replicas": 2, "both": 4}[way]
        return set(gang.run(size, train_as if way == "replicas" else staged, job, run, mode, stop_at))

    assert go(before, "new", 6) == {"stopped"}
    assert go(after, "resume") == {"done"}
    tensors, others = (load_file(RunFolder(each).state) for each in (alone, run))
    assert list(tensors) == list(others)
    assert max(_distance(each, others[name]) for name, each in tensors.items()) < _NEAR
