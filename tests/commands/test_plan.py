"""`outsize plan`: for this machine and for others, what is told and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.commands.conftest import Run
from typer.testing import CliRunner

from outsize.cli import app
from outsize.commands.plan import plan
from outsize.errors import JobError, PlanError
from outsize.files.ownership import mark
from outsize.job import load_job
from outsize.planning.advice import cuts_of
from outsize.planning.jobs.preparing import plan_job
from outsize.planning.situation import situation_here, situation_named
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


def test_a_plan_says_what_machine_it_is_for(job_path: Path) -> None:
    asked = (str(job_path), "--set", "limits.gpu_memory=8GiB", "--set", "train.precision=bf16")
    here, old = (events(*asked, *more)["machine"][0] for more in (("--device", "cpu"), ("--gpu", "v100-16")))
    first, second = str(here["text"]).splitlines()
    assert first.endswith(", bfloat16")
    assert "limits.gpu_memory counts for nothing on a CPU" in second
    first, second = str(old["text"]).splitlines()
    assert first == "for Tesla V100 16 GB, bfloat16"
    assert "no units for bfloat16" in second
    (new,) = events(*asked, "--gpu", "h200", "--gpus", "2")["machine"]
    assert new["text"] == "for 2 x H200 SXM 141 GB, bfloat16"


def test_a_plan_is_for_one_machine(run: Run, job_path: Path) -> None:
    run("plan", job_path, "--gpu", "v100-16", "--device", "cpu").refused(
        "a plan is for one machine", "leave out one of them"
    )


def test_several_gpus_share_a_batch(job_path: Path) -> None:
    alone, shared = (events(str(job_path), "--gpu", "h200", "--gpus", num) for num in ("1", "2"))
    one, two = alone["plan"][0], shared["plan"][0]
    assert (one["batch"], two["batch"]) == (2, 1)
    assert two["peak_bytes"] < one["peak_bytes"]  # type: ignore[operator]
    assert "shares" not in alone
    (shares,) = shared["shares"]
    assert shares["text"] == "1 of 2 samples on each of 2 GPUs"
    assert (shares["num_gpus"], shares["batch"], shares["most_samples"]) == (2, 2, 1)


def test_batch_norm_of_each_gpu_by_itself_is_not_called_exact(job_path: Path) -> None:
    alone, synchronised, shared = (
        events(str(job_path), "--gpu", "h200", *asked)["plan"][0]
        for asked in (("--gpus", "1"), ("--gpus", "2"), ("--gpus", "2", "--local-norm"))
    )
    assert alone["exact"]
    assert synchronised["exact"]
    assert not shared["exact"]
    assert "approximate" in str(shared["text"]).splitlines()[0]
    (told,) = [line for line in shared["why"] if line.startswith("approximate: ")]  # type: ignore[attr-defined]
    assert "encoder.0.1 (BatchNorm2d)" in told
    assert "each of 2 ranks has at most 1 of 2 samples" in told
    assert "--local-norm" in told
    # what looks at each sample by itself, or at pixels of one, does not care
    for norm in ("none", "group"):
        asked = ("--set", f"model.norm={norm}", "--set", "limits.allow_approximate=true")
        each, _ = events(str(job_path), "--gpu", "h200", "--gpus", "2", *asked)["plan"]
        assert each["exact"], norm


def test_a_job_is_spread_over_gpus_with_a_link(job_path: Path) -> None:
    batch = ("--set", "train.batch=64", "--set", "model.norm=none")
    found = events(str(job_path), "--gpu", "summit", "--gpus", "24", "--link", "infiniband-edr-2", *batch)
    (best,) = found["spread"]
    assert (best["inside"], best["between"]) == ("nvlink2-2", "infiniband-edr-2")
    assert best["num_replicas"] * best["num_stages"] == 24  # type: ignore[operator]
    assert 0 < best["efficiency"] <= 1  # type: ignore[operator]
    assert sum(best["shares"].values()) == pytest.approx(1, abs=0.01)  # type: ignore[attr-defined]
    assert "efficiency" in str(best["text"])
    assert all(each["epoch_s"] >= best["epoch_s"] for each in found.get("slower", []))  # type: ignore[operator]
    assert "plan" not in found
    assert not RunFolder(job_path.parent / "run").plan.exists()


def test_a_link_needs_a_machine_and_a_name_that_is_known(run: Run, job_path: Path) -> None:
    run("plan", job_path, "--link", "infiniband-edr").refused("--link connects GPUs", "add --gpu")
    run("plan", job_path, "--gpu", "v100-16", "--gpus", "2", "--link", "infinband-edr").refused(
        "infiniband-edr"
    )


def test_unequal_shares_and_several_hosts_are_told(job_path: Path) -> None:
    batch = ("--set", "train.batch=8", "--set", "train.tile_px=32")
    found = events(str(job_path), "--gpu", "ac922", "--gpus", "5", *batch, "--request")
    first, second = str(found["shares"][0]["text"]).splitlines()
    assert first == "at most 2 of 8 samples on each of 5 GPUs: those with fewer wait for the others"
    assert second == "  5 GPUs are more than one IBM AC922 has (4 GPUs): this is for 2 of them"
    assert "for all hosts together" in str(found["request"][0]["text"])


def test_more_gpus_than_samples_are_refused(run: Run, job_path: Path, unchanged: Callable[[], None]) -> None:
    unchanged()
    asked = ("--gpu", "v100-16", "--gpus", "3")
    run("plan", job_path, *asked, "--spread", "whole").refused(
        "job.toml", "--gpus 3 for train.batch = 2", "take --gpus 2 or fewer"
    )


def test_a_plan_for_another_machine_says_why_it_is_not_written(job_path: Path) -> None:
    state = RunFolder(job_path.parent / "run").state
    state.parent.mkdir(parents=True)
    mark(state.parents[1])
    state.touch()
    (kept,) = events(str(job_path), "--gpu", "v100-16")["kept"]
    assert kept["text"] == "not written: a plan for another machine is none for this one"
    (kept,) = events(str(job_path), "--device", "cpu")["kept"]
    assert "holds a training and its plan" in str(kept["text"])


def test_a_network_too_deep_to_be_built_is_refused_at_once(run: Run, job_path: Path) -> None:
    for levels in (14, 40):
        run("plan", job_path, "--set", f"model.levels={levels}").refused(
            "job.toml", f"width 4 doubled {levels - 1} times", "8192", "set levels = 12 or fewer"
        )


def test_the_request_names_memory_disk_and_hours(job_path: Path) -> None:
    (request,) = events(str(job_path), "--gpu", "a100-40", "--gpus", "2", "--request")["request"]
    assert request["gpus"] == 2
    assert request["gpu_gib"]
    assert request["hours"]
    assert "--gres=gpu:2" in str(request["text"])


@pytest.mark.long
def test_each_gpu_has_the_samples_of_its_share_in_host_memory(job_path: Path) -> None:
    large = (
        "--set",
        "train.batch=4",
        "--set",
        "train.tile_px=4096",
        "--set",
        "limits.allow_approximate=true",
    )
    counted = []
    for num in (1, 2, 4):
        (request,) = events(str(job_path), "--gpu", "h200", "--gpus", str(num), *large, "--request")[
            "request"
        ]
        counted.append(request["host"]["processes_bytes"])  # type: ignore[index, call-overload]
    one, two, four = counted
    workers = load_job(job_path, []).train.workers
    ahead_bytes = one - 3 * 2**30 - workers * 3 * 2**29
    assert ahead_bytes > 2**30
    assert two - one == pytest.approx(3 * 2**30 + workers * 3 * 2**29)
    assert four - two == pytest.approx(2 * (3 * 2**30 + workers * 3 * 2**29))


@pytest.fixture
def free_job_path(job_path: Path) -> Path:
    """A job that leaves the tiles to the plan."""
    text = job_path.read_text()
    assert text.count("[limits]") == text.count('"1GiB"\ntile_px = 64\n') == 1
    job_path.write_text(text.replace('"1GiB"\ntile_px = 64\n', '"1GiB"\n'))
    return job_path


def test_a_scene_that_fits_whole_is_not_cut(free_job_path: Path) -> None:
    found = events(str(free_job_path), "--device", "cpu")
    assert "cuts" not in found
    assert "fits" in str(found["plan"][1]["why"])
    assert "one window" in str(found["plan"][1]["why"])


def rows_of(cuts: dict[str, object]) -> list[list[str]]:
    """Return the columns of each row of a table: q, core, halo, window, redundancy, ..."""
    lines = [line.split() for line in str(cuts["text"]).splitlines()]
    return [line for line in lines if line and line[0].isdigit()]


def test_a_scene_in_several_tiles_comes_with_the_ways_to_cut_it(job_path: Path) -> None:
    found = events(str(job_path), "--device", "cpu", "--set", "limits.tile_px=32")
    (cuts,) = found["cuts"]
    assert cuts["purpose"] == "prediction"
    assert "<- taken" in str(cuts["text"])
    assert "limits.tile_px asks for this core" in str(cuts["text"])


def test_a_core_of_the_table_is_one_that_the_key_takes(job_path: Path) -> None:
    stride = ("--set", "model.levels=2")  # cores are multiples of more than the stride
    (cuts,) = events(str(job_path), "--device", "cpu", *stride, "--set", "limits.tile_px=32")["cuts"]
    assert len(rows_of(cuts)) >= 2
    for row in rows_of(cuts)[:2]:
        asked = f"limits.tile_px={row[1]}"
        _, predict = events(str(job_path), "--device", "cpu", *stride, "--set", asked)["plan"]
        assert predict["tiles"]["core_px"] == int(row[1])  # type: ignore[index, call-overload]


@pytest.mark.parametrize("limit", ["3MiB", "2500KiB", "2MiB"])
def test_the_taken_tiling_takes_the_least_time_of_the_table(free_job_path: Path, limit: str) -> None:
    job = load_job(free_job_path, [f"limits.gpu_memory={limit}", "train.tile_px=32"])
    planned = plan_job(job, situation_named("v100-16", 1, "fp32"), QUIET)
    (_, cuts, _, core_px), *_ = cuts_of(job, planned)
    taken_s = next(cut.image_s for cut in cuts if cut.tiling.core_px == core_px)
    times_s = [cut.image_s for cut in cuts if cut.fits]
    assert taken_s == min(each for each in times_s if each is not None)
    assert not all(cut.fits for cut in cuts)


def test_a_short_halo_is_that_of_the_table(job_path: Path) -> None:
    asked = ("limits.tile_px=32", "limits.halo_px=2", "limits.allow_approximate=true")
    options = [part for each in asked for part in ("--set", each)]
    found = events(str(job_path), "--device", "cpu", *options)
    (cuts,), (_, predict) = found["cuts"], found["plan"]
    before_px = max(predict["tiles"]["halo_before_px"])  # type: ignore[index, call-overload]
    assert {int(row[2]) for row in rows_of(cuts)} == {before_px}
    assert "for limits.halo_px asks for less" in str(cuts["text"])
    assert not predict["exact"]


def test_a_plan_says_how_long_a_training_takes(job_path: Path) -> None:
    train, predict = events(str(job_path), "--device", "cpu", "--set", "train.epochs=7")["plan"]
    assert train["num_epochs"] == 7
    assert train["num_steps"] % 7 == 0  # type: ignore[operator]
    assert train["total_s"] > train["num_steps"] * train["step_s"] > 0  # type: ignore[operator]
    assert f"{train['num_steps']} steps in 7 epochs: about " in str(train["text"])
    assert "num_steps" not in predict


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


@pytest.mark.long
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
        ([], "v10", "several machines begin with that name: found 'v10'.*v100-16"),
        ([], "V 100", "v100-16"),
        ([], "vv100-16", "unknown machine: found 'vv100-16'.*did you mean v100-16"),
    ],
)
def test_bad_budgets_and_machines_are_refused(
    job_path: Path, overrides: list[str], gpu: str, text: str
) -> None:
    with pytest.raises(PlanError, match=text):
        plan(job_path, overrides=overrides, device_name="auto", reporter=QUIET, gpu=gpu)


def test_a_budget_that_is_no_size_is_refused(job_path: Path) -> None:
    with pytest.raises(JobError, match=r"bad value for 'limits.gpu_memory' in .*: found 'lots'"):
        plan(job_path, overrides=["limits.gpu_memory=lots"], device_name="cpu", reporter=QUIET)


def test_a_plan_for_ranks_of_this_machine_is_that_of_their_training(job_path: Path) -> None:
    alone, shared = (events(str(job_path), "--device", "cpu", "--gpus", num) for num in ("1", "2"))
    one, two = alone["plan"][0], shared["plan"][0]
    assert (one["batch"], two["batch"], two["exact"]) == (2, 1, True)
    assert shared["machine"][0]["text"] == "for 2 processes on the CPU of this machine, float32"
    assert two["limit_bytes"] < one["limit_bytes"], "host memory is shared"  # type: ignore[operator]
    (kept,) = shared["kept"]
    assert "made again when they train" in str(kept["text"])
