"""A training by several ranks through all that the verb does: the weights, scores and files of one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import rasterio
import torch
from safetensors.torch import load_file
from tests.conftest import write_job
from tests.ranks.gang import Gang
from torch import nn

import outsize.planning.jobs as jobs_module
from outsize import stopping
from outsize.commands.train import train
from outsize.errors import OutsizeError
from outsize.planning.situation import Sharing
from outsize.progress import Reporter
from outsize.ranks import ALONE, World
from outsize.runs import RunFolder

_IGNORED = 250
_STEPS = 20


def _in_doubles(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(each.double() for each in args)


def _prepare(prepare: Callable[..., Any], micro_batches: int | None) -> Callable[..., Any]:
    """Return what prepares a training in float64, in micro-batches."""

    def prepared(*args: Any, **kwargs: Any) -> Any:
        found = prepare(*args, **kwargs)
        found.model.double().register_forward_pre_hook(_in_doubles)
        if found.train_plan.pipeline is not None:
            return found
        plan = replace(found.train_plan, micro_batches=micro_batches, exact=micro_batches is None)
        return found.with_plan(plan)

    return prepared


def train_as(
    world: World,
    job: Path,
    run: Path,
    mode: str = "new",
    stop_at: int | None = None,
    micro_batches: int | None = None,
    **options: Any,
) -> str:
    """Train in float64 in this process, as one rank of several; stopped at a step, return how it ended."""
    torch.set_num_threads(1)
    before = jobs_module.prepare
    prepare = _prepare(before, micro_batches)
    asked = mock.patch.object(stopping, "asked", _after(stop_at)) if stop_at else mock.patch.dict({})
    with mock.patch.object(jobs_module, "prepare", prepare), asked:
        try:
            train(
                job,
                overrides=[f"run={run}"],
                device_name="cpu",
                mode=mode,
                reporter=Reporter("quiet"),
                world=world,
                **options,
            )
        except stopping.Stopped:
            stopping._now.clear()
            return "stopped"
        except OutsizeError as error:
            return str(error)
    return "done"


def _after(step: int) -> Callable[[], bool]:
    """Return what asks for the end when it is looked at for the nth time, which is once a step."""
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= step


def _files(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    folder = RunFolder(run)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    untimed = [{key: value for key, value in line.items() if not key.endswith("_s")} for line in lines]
    return load_file(folder.state), untimed


def apart(one: Path, other: Path) -> float:
    (tensors, lines), (others, other_lines) = _files(one), _files(other)
    assert list(tensors) == list(others), "the same form"
    assert [line.keys() for line in lines] == [line.keys() for line in other_lines]
    for line, its in zip(lines, other_lines, strict=True):
        for key in ("mean_iou", "pixel_accuracy", "mix", "class_weights", "lr"):
            assert line.get(key) == its.get(key), key
        for name, value in line.get("terms", {}).items():
            assert value == pytest.approx(its["terms"][name], rel=1e-12)
    return max(_distance(value, others[name]) for name, value in tensors.items())


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far numbers are apart, those of the optimizer beyond 1 as a share of the largest."""
    return float((one.double() - other.double()).abs().max() / one.double().abs().max().clamp(min=1))


@pytest.fixture(scope="module")
def job(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ERFNet, which has batch norm and dropout, on scenes of which parts are not labelled; 20 steps of 8 samples.

    In two micro-batches that is one sample for each of 4 ranks; more ranks than that take fewer micro-batches.
    By SGD: AdamW divides the gradient of a bias before batch norm, which is rounding alone, by next to nothing.
    """
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(scenes, folder / "scenes")
    with rasterio.open(folder / "scenes" / "train-0_labels.tif", "r+") as labels:
        values = labels.read(1)
        values[:70, :] = _IGNORED
        values[:, 150:] = np.where(np.arange(len(values))[:, None] % 3, _IGNORED, values[:, 150:])
        labels.write(values, 1)
    return write_job(
        folder / "job.toml",
        folder / "scenes",
        **{
            'name = "unet"\nlevels = 3\nwidth = 4': 'name = "erfnet"\nwidth = 6\ndropout = 0.3\nearly_dropout = 0.1',
            "batch = 2": 'batch = 8\nclass_weights = "log"\ncheckpoint_steps = 7\noptimizer = "sgd"',
            "lr = 1e-3": "lr = 1e-5",  # larger ones, and the network makes 1e-16 to 1e-9 in twenty steps
            "samples_per_epoch = 8": "samples_per_epoch = 80",
            "bands = [": f"ignore_value = {_IGNORED}\nbands = [",
        },
    )


@pytest.fixture(scope="module", params=[None, 2], ids=["whole", "accumulated"])
def alone(request: pytest.FixtureRequest, job: Path) -> tuple[Path, int | None]:
    run = job.parent / f"alone-{request.param}"
    assert train_as(ALONE, job, run, micro_batches=request.param) == "done"
    return run, request.param


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_ranks_train_as_one_process_does(
    size: int, alone: tuple[Path, int | None], job: Path, gang: Gang, tmp_path: Path
) -> None:
    run, micro_batches = alone
    ended = gang.run(size, train_as, job, tmp_path / "run", "new", None, micro_batches)
    assert ended == ["done"] * size
    assert apart(run, tmp_path / "run") < 1e-12
    best = [RunFolder(each).best.with_suffix(".json").read_text() for each in (run, tmp_path / "run")]
    assert best[0] == best[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 1), (3, 2), (1, 4), (4, 2)))],
)
def test_another_number_of_ranks_goes_on_in_the_middle_of_an_epoch(
    first: int, second: int, alone: tuple[Path, int | None], job: Path, gang: Gang, tmp_path: Path
) -> None:
    run, micro_batches = alone

    def go(size: int, *args: Any) -> list[str]:
        if size == 1:
            return [train_as(ALONE, *args)]
        return gang.run(size, train_as, *args)

    assert go(first, job, tmp_path / "run", "new", 13, micro_batches) == ["stopped"] * first
    position = json.loads(_header(RunFolder(tmp_path / "run").state)["position"])
    assert 0 < position["step"] < _STEPS // 2
    assert go(second, job, tmp_path / "run", "resume", None, micro_batches) == ["done"] * second
    assert apart(run, tmp_path / "run") < 1e-12


@pytest.mark.long
def test_a_state_in_shards_goes_on_in_others_and_in_one_piece(
    alone: tuple[Path, int | None], job: Path, gang: Gang, tmp_path: Path
) -> None:
    run, micro_batches = alone
    in_shards = partial(train_as, sharing=Sharing(shard=True))
    ended = gang.run(2, in_shards, job, tmp_path / "run", "new", 13, micro_batches)
    assert ended == ["stopped"] * 2
    plan = json.loads(RunFolder(tmp_path / "run").plan.read_text())["train"]
    assert plan["replicate"] == {"shards": 2}
    assert gang.run(3, in_shards, job, tmp_path / "run", "resume", 4, micro_batches) == ["stopped"] * 3
    assert train_as(ALONE, job, tmp_path / "run", "resume", None, micro_batches) == "done"
    assert apart(run, tmp_path / "run") < 1e-12


def _header(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())
