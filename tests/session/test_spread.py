"""Each picture on several ranks, through all that `train` does: the weights, scores and files of one process."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import write_job
from tests.ranks.gang import Gang
from tests.session.test_ranks import apart, train_as

from outsize.planning.situation import Sharing
from outsize.ranks import ALONE
from outsize.runs import RunFolder


def _job(folder: Path, scenes: Path, norm: str, *, batch: int = 3) -> Path:
    # group norm looks at the whole scene, and the passes that find its numbers run operations one by one, in floats
    limits = "\nallow_approximate = true\nhalo_px = 24" if norm == "group" else ""
    return write_job(
        folder / "job.toml",
        scenes,
        **{
            'host_memory = "1GiB"': f'host_memory = "1GiB"{limits}',
            "width = 4": f'width = 4\nnorm = "{norm}"',
            "batch = 2": f'batch = {batch}\nclass_weights = "log"\ncheckpoint_steps = 2\noptimizer = "sgd"',
            "lr = 1e-3": "lr = 1e-5",
            "samples_per_epoch = 8": f"samples_per_epoch = {3 * batch}",
            "tile_px = 64\nbatch": "tile_px = [72, 64]\nbatch",
        },
    )


def _planned(run: Path) -> Any:
    return json.loads(RunFolder(run).plan.read_text())["train"]


@pytest.mark.parametrize(
    ("norm", "how", "size", "micro_batches"),
    [
        ("batch", "exchange", 2, None),
        ("none", "recompute", 2, None),
        pytest.param("batch", "exchange", 4, 2, marks=pytest.mark.long),
        pytest.param("group", "exchange", 3, None, marks=pytest.mark.long),
        pytest.param("none", "recompute", 3, 2, marks=pytest.mark.long),
    ],
)
def test_pictures_in_parts_train_as_whole_ones_do(
    norm: str, how: str, size: int, micro_batches: int | None, scenes: Path, gang: Gang, tmp_path: Path
) -> None:
    job = _job(
        tmp_path, scenes, norm, batch=4 if size == 4 else 3
    )  # each replica has some of each micro-batch
    assert train_as(ALONE, job, tmp_path / "alone", micro_batches=micro_batches) == "done"
    spread = partial(train_as, sharing=Sharing(spread=how))
    ended = gang.run(size, spread, job, tmp_path / "run", "new", None, micro_batches)
    assert ended == ["done"] * size
    plan = _planned(tmp_path / "run")
    assert plan["exact"] == (micro_batches is None), "as the test has planned"
    assert plan["spatial"]["grid"] == [3 if size == 3 else 2, 1]
    assert (plan["spatial"]["halo_before_px"] is None) == (how == "exchange")
    assert apart(tmp_path / "alone", tmp_path / "run") < 1e-12


def test_one_sample_on_several_ranks_goes_on_with_one(scenes: Path, gang: Gang, tmp_path: Path) -> None:
    """More ranks than samples share each picture by themselves; a checkpoint of them is as any other."""
    job = _job(tmp_path, scenes, "batch")
    job.write_text(
        job.read_text()
        .replace("batch = 3", "batch = 1")
        .replace("samples_per_epoch = 9", "samples_per_epoch = 3")
    )
    assert train_as(ALONE, job, tmp_path / "alone") == "done"
    assert gang.run(2, train_as, job, tmp_path / "run", "new", 2) == ["stopped"] * 2
    assert _planned(tmp_path / "run")["spatial"]["grid"] == [2, 1]
    assert train_as(ALONE, job, tmp_path / "run", "resume") == "done"
    assert _planned(tmp_path / "run")["spatial"] is None
    assert apart(tmp_path / "alone", tmp_path / "run") < 1e-12
