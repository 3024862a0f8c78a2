"""`outsize plan`: for this machine and for others, what is told and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from outsize.cli import app
from outsize.commands.advice import cuts_of
from outsize.commands.plan import plan
from outsize.commands.planning import situation_here, situation_named
from outsize.commands.preparing import plan_job
from outsize.errors import JobError, PlanError
from outsize.job import load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder

QUIET = Reporter("quiet")


def events(*args: str) -> dict[str, list[dict[str, object]]]:
    result = CliRunner().invoke(app, ["plan", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, list[dict[str, object]]] = {}
    for line in result.output.splitlines():
        each = json.loads(line)
        found.setdefault(each["event"], []).append(each)
    return found


def test_another_machine_is_planned_for_without_being_here(job_path: Path) -> None:
    found = events(str(job_path), "--gpu", "v100-16")
    train, predict = found["plan"]
    assert train["limit_bytes"] == predict["limit_bytes"]
    assert 14 * 2**30 < train["limit_bytes"] < 16 * 2**30  # type: ignore[operator]
    assert train["step_s"]
    # what holds for another machine is no plan for this one
    assert not RunFolder(job_path.parent / "run").plan.exists()


def test_several_gpus_share_a_batch(job_path: Path) -> None:
    one, two = (events(str(job_path), "--gpu", "h200", "--gpus", num)["plan"][0] for num in ("1", "2"))
    assert (one["batch"], two["batch"]) == (2, 1)
    assert two["peak_bytes"] < one["peak_bytes"]  # type: ignore[operator]


def test_the_request_names_memory_disk_and_hours(job_path: Path) -> None:
    (request,) = events(str(job_path), "--gpu", "a100-40", "--gpus", "2", "--request")["request"]
    assert request["gpus"] == 2
    assert request["gpu_gib"]
    assert request["hours"]
    assert "--gres=gpu:2" in str(request["text"])


def test_a_scene_in_several_tiles_comes_with_the_ways_to_cut_it(job_path: Path) -> None:
    (cuts,) = events(str(job_path), "--device", "cpu")["cuts"]
    assert cuts["purpose"] == "prediction"
    assert "<- taken" in str(cuts["text"])


@pytest.mark.parametrize("gpu", [None, "v100-16"])
def test_the_table_of_cuts_counts_what_the_plan_counts(job_path: Path, gpu: str | None) -> None:
    tight = ["limits.tile_px=16"] if gpu is None else ["limits.gpu_memory=3MiB", "train.tile_px=32"]
    job = load_job(job_path, tight)
    named = situation_named(gpu, 1, "fp32") if gpu else situation_here(torch.device("cpu"), "fp32")
    planned = plan_job(job, named, QUIET)
    (_, cuts, _, core_px), *_ = cuts_of(job, planned)
    taken = next(cut for cut in cuts if cut.tiling.core_px == core_px)
    predict, window_px = planned.predict_plan, taken.window_px[0] * taken.window_px[1]
    others_bytes = (predict.batch - 1) * planned.facts.window.predict_bytes_per_px * window_px
    assert planned.resident_bytes > 0  # the optimizer's state
    assert taken.peak_bytes == pytest.approx(predict.peak_bytes - others_bytes, abs=2)


def test_a_step_waits_in_host_memory_where_it_does_not_fit_a_gpu(job_path: Path) -> None:
    asked = ("--set", "train.batch=4", "--set", "train.tile_px=256", "--set", "train.precision=fp32")
    plain, _ = events(str(job_path), "--gpu", "h200", *asked)["plan"]
    limit = f"limits.gpu_memory={int(0.6 * plain['peak_bytes'])}"  # type: ignore[operator, call-overload]
    train, _ = events(str(job_path), "--gpu", "h200", *asked, "--set", limit)["plan"]
    assert train["exact"]
    assert train["swap"]
    assert "to host memory" in str(train["text"])
    # without room on the host another way is taken
    none, _ = events(
        str(job_path), "--gpu", "h200", *asked, "--set", limit, "--set", "limits.host_memory=512KiB"
    )["plan"]
    assert none["swap"] is None


def test_weights_are_left_on_the_host_only_where_nothing_else_fits(job_path: Path) -> None:
    asked = ("--set", "model.levels=3", "--set", "model.width=196", "--set", "train.tile_px=32")
    roomy, _ = events(str(job_path), "--gpu", "h200", *asked)["plan"]
    assert roomy["offload"] is None
    states_bytes = 17_500_000 * 12  # 17.5 million weights, and two numbers of the optimizer for each
    assert roomy["peak_bytes"] > states_bytes  # type: ignore[operator]
    limit = f"limits.gpu_memory={states_bytes}"
    tight, predict = events(str(job_path), "--gpu", "h200", *asked, "--set", limit)["plan"]
    assert tight["exact"]
    assert tight["offload"]
    assert tight["peak_bytes"] < 0.85 * states_bytes  # type: ignore[operator]
    assert predict["peak_bytes"] < 0.85 * states_bytes  # type: ignore[operator]
    little = ("--set", limit, "--set", "limits.host_memory=100MiB")
    with pytest.raises(PlanError, match="does not fit"):
        events(str(job_path), "--gpu", "h200", *asked, *little)


def test_a_step_that_does_not_fit_is_planned_otherwise(job_path: Path) -> None:
    asked = ("--set", "model.norm=none", "--set", "train.tile_px=128", "--set", "limits.host_memory=8MiB")
    train, _ = events(str(job_path), "--device", "cpu", *asked)["plan"]
    assert train["exact"]
    assert train["micro_batches"] or train["tiles"] or train["recompute"]
    assert train["peak_bytes"] <= 0.7 * 8 * 2**20  # type: ignore[operator]
    assert train["rejected"]


@pytest.mark.parametrize(
    ("overrides", "gpu", "text"),
    [
        (["limits.gpu_memory=100KiB"], "v100-16", "does not fit"),
        (["limits.gpu_memory=100GiB"], "v100-16", "more than .*V100.* has: found 100.0 GiB"),
        ([], "v10", "unknown machine: found 'v10'.*v100-16"),
        ([], "V 100", "v100-16"),
    ],
)
def test_bad_budgets_and_machines_are_refused(
    job_path: Path, overrides: list[str], gpu: str, text: str
) -> None:
    with pytest.raises(PlanError, match=text):
        plan(job_path, overrides=overrides, device_name="cpu", reporter=QUIET, gpu=gpu)


def test_a_budget_that_is_no_size_is_refused(job_path: Path) -> None:
    with pytest.raises(JobError, match=r"bad value for 'limits.gpu_memory' in .*: found 'lots'"):
        plan(job_path, overrides=["limits.gpu_memory=lots"], device_name="cpu", reporter=QUIET)


def test_a_number_of_gpus_needs_a_machine(job_path: Path) -> None:
    with pytest.raises(JobError, match="--gpus counts GPUs of a named machine: found 4"):
        plan(job_path, overrides=(), device_name="cpu", reporter=QUIET, num_gpus=4)
