"""`outsize verify` on a run that was not trained by the plain step: the step as planned equals it, or that is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import write_job
from torch import nn

from outsize.commands.results.verify import verify
from outsize.commands.train import train
from outsize.errors import PlanError, RunError, VerifyError
from outsize.planning.planned import planned_otherwise
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.strategies.compiled import missing_compiler
from outsize.strategies.kernels import fused_layer
from outsize.strategies.kernels.norm import batch_norm
from outsize.strategies.swap import move

QUIET = Reporter("quiet")
# what a job asks for, and what its plan must do about it
JOBS = {
    "recompute": {'host_memory = "1GiB"': 'host_memory = "4MiB"'},
    "tiles": {
        'host_memory = "1GiB"': 'host_memory = "3MiB"',
        "width = 4": 'width = 4\nnorm = "none"',
        "tile_px = 64\nbatch": "tile_px = 128\nbatch",
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, scenes: Path) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            changes = {**JOBS[name], "epochs = 2": "epochs = 1"}
            job = write_job(tmp_path_factory.mktemp(name) / "job.toml", scenes, **changes)
            made[name] = train(job, overrides=(), device_name="cpu", mode="new", reporter=QUIET).path
        return made[name]

    return run


@pytest.fixture
def own(tmp_path: Path, trained: Callable[[str], Path]) -> Callable[..., RunFolder]:
    """A trained run whose training plan the test may change."""

    def copy(name: str, **changes: Any) -> RunFolder:
        run = RunFolder(Path(shutil.copytree(trained(name), tmp_path / name)))
        plans = json.loads(run.plan.read_text())
        plans["train"].update(changes)
        run.plan.write_text(json.dumps(plans))
        return run

    return copy


def _verified(run: RunFolder) -> dict[str, Any]:
    return verify(run.path, overrides=(), device_name="cpu", reporter=QUIET)


def test_a_run_that_recomputed(own: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    run = own("recompute")
    plan = planned_otherwise(run)
    assert plan is not None
    assert plan.recompute is not None
    proof = verify(run.path, overrides=(), device_name="cpu", reporter=Reporter("json"))["planned_step"]
    assert proof["passed"]
    # a CPU replays to the bit
    assert (proof["loss"], proof["gradients"], proof["buffers"]) == (0.0, 0.0, 0.0)
    num_keys = len(plan.recompute.saved)
    num_made = num_keys - len(proof["unmet"]) - len(proof["refused"])
    assert proof["num_keys"] == num_keys
    assert num_made >= num_keys - 1
    assert f"{num_made} of {num_keys} planned tensors recomputed" in capsys.readouterr().out
    assert json.loads(run.verify.read_text())["planned_step"]["passed"]


def test_a_run_that_tiled(own: Callable[..., RunFolder]) -> None:
    run = own("tiles")
    proof = _verified(run)["planned_step"]
    assert proof["passed"]
    assert (proof["num_tiles"], proof["num_micro_batches"]) == (9, 2)
    assert 0 < proof["gradients"] < 1e-12  # summed in another order


def test_a_halo_too_short_for_the_gradient_fails(own: Callable[..., RunFolder]) -> None:
    short = {"core_px": 64, "halo_before_px": [20, 20], "halo_after_px": [20, 20], "stride_px": 4}
    run = own("tiles", tiles=short)  # 22 px are needed
    with pytest.raises(
        VerifyError, match=r"a step as planned differs from the plain one by .* in "
    ) as caught:
        _verified(run)
    assert "logits differ" not in str(caught.value)  # prediction has a halo of its own
    proof = json.loads(run.verify.read_text())["planned_step"]
    assert not proof["passed"]
    assert proof["gradients"] > proof["tolerance"]


def test_an_approximate_plan_is_measured_and_does_not_fail(own: Callable[..., RunFolder]) -> None:
    proof = _verified(own("recompute", recompute=None, micro_batches=2, exact=False))["planned_step"]
    assert not proof["passed"]
    assert proof["gradients"] > 1e-3  # batch norm saw half the batch at a time
    assert proof["buffers"] > 1e-3


def test_a_batch_counted_twice_fails(own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    run = own("recompute", recompute={"saved": [], "blocks": ["encoder.0", "decoder.1"]})
    assert _verified(run)["planned_step"]["num_blocks"] == 2
    monkeypatch.setattr("outsize.strategies.blocks.checkpointing.Buffers.set_aside", lambda _: nullcontext())
    with pytest.raises(VerifyError, match=r"differs .* in encoder|differs .* in decoder"):
        _verified(run)
    proof = json.loads(run.verify.read_text())["planned_step"]
    assert proof["gradients"] == 0.0
    assert proof["buffers"] > 0.1


def test_tensors_that_do_not_come_up_are_told(
    own: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [["encoder.9", 0, 0], ["encoder.0.1", 0, 0]]  # there is none, and the result of a convolution
    run = own("recompute", recompute={"saved": keys, "blocks": []})
    proof = verify(run.path, overrides=(), device_name="cpu", reporter=Reporter("json"))["planned_step"]
    assert proof["unmet"] == ("encoder.9, call 0, tensor 0",)
    assert proof["refused"] == ("encoder.0.1, call 0, tensor 0",)
    told = capsys.readouterr().out
    assert "0 of 2 planned tensors recomputed" in told
    assert "did not appear: encoder.9" in told
    assert "had to be kept: encoder.0.1" in told


def test_a_plain_run_has_nothing_to_prove(copied_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned_otherwise(RunFolder(copied_run)) is None
    assert "planned_step" not in verify(
        copied_run, overrides=(), device_name="cpu", reporter=Reporter("json")
    )
    assert "trained by the plain step" in capsys.readouterr().out
    (copied_run / "plan.json").unlink()
    assert planned_otherwise(RunFolder(copied_run)) is None


@pytest.mark.parametrize(
    "spoilt", ["{}", '{"train": null}', '{"train": {"batch": 2}}', '{"train": {"tiles": 3}}', "[]", "3"]
)
def test_a_plan_that_is_none_is_refused(copied_run: Path, spoilt: str) -> None:
    (copied_run / "plan.json").write_text(spoilt)
    with pytest.raises(RunError, match=r"plan\.json cannot be understood: found .*run `outsize plan` again"):
        _verified(RunFolder(copied_run))


def test_a_run_that_swapped(own: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    moved = [
        {"key": [path, 0, 0], "size_bytes": 2**20, "release": None, "fetch": None}
        for path in ("encoder.0.1", "encoder.9")
    ]
    run = own("recompute", recompute=None, swap={"moved": moved, "pinned_bytes": 2**21})
    found = verify(run.path, overrides=(), device_name="cpu", reporter=Reporter("json"))
    assert found["swapped_equals_resident"]["passed"]
    assert found["swapped_equals_resident"]["num_moved"] == 1
    assert found["planned_step"]["gradients"] == 0.0
    told = capsys.readouterr().out
    assert "swapped = resident, float64 (1 of 2 planned tensors moved)" in told
    assert "1 of the tensors planned to be swapped did not appear" in told


def test_a_run_whose_bytes_come_back_wrong_fails(
    own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"key": ["encoder.0.1", 0, 0], "size_bytes": 2**20, "release": None, "fetch": None}
    run = own("recompute", recompute=None, swap={"moved": [one], "pinned_bytes": 2**20})
    back = move.MovedStorage.back
    monkeypatch.setattr(move.MovedStorage, "back", lambda self: back(self) * (1 + 1e-13))
    with pytest.raises(VerifyError, match=r"a swapped step differs from the resident one by .* in encoder"):
        _verified(run)


# ---- what is said of each strategy


def _claims(run: RunFolder) -> dict[str, dict[str, Any]]:
    _verified(run)
    return {each["strategy"]: each for each in json.loads(run.verify.read_text())["strategies"]}


_COMPILE = {"paths": ["encoder.0", "bottleneck"], "activation_budget": None}
_BLOCKS = {"saved": [], "blocks": ["encoder.0", "decoder.1"]}


def test_each_strategy_of_a_plan_is_proved_or_said_not_to_be(
    own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", "aot_eager")
    moved = [{"key": ["encoder.0.1", 0, 0], "size_bytes": 2**20, "release": None, "fetch": None}]
    every = {
        "compile": {"paths": ["bottleneck"], "activation_budget": None},
        "fuse": {},  # cross-entropy: compiled blocks fuse their layers themselves
        "recompute": {"saved": [], "blocks": ["decoder.1"]},
        "swap": {"moved": moved, "pinned_bytes": 2**21},
        "graph": True,
        "paged": True,
    }
    run = own("recompute", **every)
    verify(run.path, overrides=(), device_name="cpu", reporter=Reporter("json"))
    claims = json.loads(run.verify.read_text())["strategies"]
    assert {each["strategy"]: each["proved"] for each in claims} == {
        "compile": True,
        "fuse": False,
        "graph": False,
        "pages": False,
        "recompute": True,
        "swap": True,
    }
    told = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    for each in claims:
        assert not each["failed"]
        assert each["why"]
        assert bool(each["needs"]) != each["proved"]  # what would prove it
        verdict = "proved here" if each["proved"] else "not proved here"
        assert sum(text.startswith(f"{each['strategy']}: {verdict}: ") for text in told) == 1


@pytest.mark.parametrize("graph", [False, True])
def test_a_plan_of_what_needs_a_gpu_says_so(own: Callable[..., RunFolder], graph: bool) -> None:
    alone = {"graph": True, "paged": True} if graph else {"fuse": {"norms": ["encoder.0.1"]}}
    claims = _claims(own("recompute", recompute=None, **alone))
    assert set(claims) == ({"graph", "pages"} if graph else {"fuse"})
    for each in claims.values():
        assert not each["proved"]
        assert "GPU" in each["needs"]


def test_compiled_blocks_are_compared_with_plain_ones(
    own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outsize.strategies.compiled.BACKEND", "aot_eager")
    run = own("recompute", recompute=None, compile=_COMPILE)
    assert _claims(run)["compile"]["proved"]
    assert json.loads(run.verify.read_text())["planned_step"]["num_compiled"] == 2

    def wrong(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return type(block).forward(block, x) * (1 + 1e-6)  # type: ignore[no-any-return, operator]

    monkeypatch.setattr("outsize.strategies.compiled._call", wrong)
    with pytest.raises(VerifyError, match="a step as planned differs"):
        _verified(run)
    (claim,) = json.loads(run.verify.read_text())["strategies"]
    assert claim["failed"]
    assert not claim["proved"]


@pytest.mark.long
def test_what_torchs_compiler_makes_is_compared(own: Callable[..., RunFolder]) -> None:
    if missing_compiler() is not None:
        pytest.skip("no C++ compiler")
    claims = _claims(own("recompute", recompute=None, compile=_COMPILE))
    assert claims["compile"]["proved"]
    assert "float64" in claims["compile"]["why"]


@pytest.mark.parametrize("why", ["no compiler", "it fails"])
def test_what_cannot_be_compiled_here_is_not_proved_and_the_rest_is(
    own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no compiler":
        monkeypatch.setattr("shutil.which", lambda _: None)
    else:

        def refuse(*_: object) -> None:
            raise PlanError("bottleneck cannot be compiled")

        monkeypatch.setattr("outsize.strategies.compiled._functions", refuse)
    claims = _claims(own("recompute", recompute=_BLOCKS, compile=_COMPILE | {"paths": ["bottleneck"]}))
    assert claims["recompute"]["proved"]
    assert not claims["compile"]["proved"]
    assert not claims["compile"]["failed"]
    assert ("C++ compiler" if why == "no compiler" else "cannot be compiled") in claims["compile"]["why"]


def test_fused_layers_are_compared_by_their_formulas_without_a_gpu(
    own: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own("recompute", recompute=None, fuse={"norms_with_relu": ["encoder.0.1"], "pools": []})
    fuse = _claims(run)["fuse"]
    assert not fuse["proved"]
    assert "kernels need a GPU (the same formulas" in fuse["why"]
    assert not fused_layer._ON_CPU
    forward = batch_norm._forward

    def wrong(*args: Any, **how: Any) -> Any:
        y, mean, invstd = forward(*args, **how)
        return y * 1.01, mean, invstd

    monkeypatch.setattr(batch_norm, "_forward", wrong)
    with pytest.raises(VerifyError, match="fuse: NOT TRUE here"):
        _verified(run)


def test_what_an_approximate_plan_makes_again_is_proved_by_itself(own: Callable[..., RunFolder]) -> None:
    claims = _claims(own("recompute", recompute=_BLOCKS, micro_batches=2, exact=False))
    assert claims["recompute"]["proved"]
    assert not claims["micro-batches"]["proved"]
    assert "approximate" in claims["micro-batches"]["why"]


def test_tensors_of_which_none_came_up_prove_nothing(own: Callable[..., RunFolder]) -> None:
    claims = _claims(own("recompute", recompute={"saved": [["encoder.9", 0, 0]], "blocks": []}))
    assert not claims["recompute"]["proved"]
    assert "none of its 1 tensors came up" in claims["recompute"]["why"]
