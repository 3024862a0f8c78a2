"""On a GPU: another process takes memory in the middle of a training, which goes on and ends as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import write_job

from outsize.commands.train import train
from outsize.data.batch import Batch
from outsize.planning.trying import recording
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.strategies import compose
from outsize.strategies.step import Step, Terms

NUM_STEPS, BATCH = 12, 32
LEFT = 0.5  # of what a plain step takes: too little for it, and enough for one that recomputes and moves
_HOLDER = """
import sys, torch
torch.empty(1, device="cuda")
print("ready", flush=True)
left_bytes = int(sys.stdin.readline())
free_bytes, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free_bytes - left_bytes), dtype=torch.uint8, device="cuda")
print(held.numel(), flush=True)
sys.stdin.readline()
"""


class _Holder:
    """Another process, which holds all memory of the GPU but so much, from when it is asked to its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready"

    def take(self, left_bytes: int) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{left_bytes}\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _holder() -> Iterator[_Holder]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _HOLDER], text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield _Holder(process)
        finally:
            process.kill()


class _Watched:
    """Steps of a training: their losses, what they take, and at one of them somebody who takes memory away."""

    def __init__(self, holder: _Holder | None = None, left_bytes: int = 0, at_step: int = 0) -> None:
        self._holder, self._left_bytes, self._at_step = holder, left_bytes, at_step
        self._make = compose.compose
        self.losses: list[float] = []
        self.taken_bytes = 0  # by a step, at most, over what is there between steps

    def compose(self, *args: Any, **settings: Any) -> Step:
        step = self._make(*args, **settings)
        if "meter" not in settings:
            return step  # that the planner tries

        def run(batch: Batch, *, last: bool) -> Terms:
            if len(self.losses) == self._at_step and self._holder is not None:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()  # as after a validation, or with memory that never was this process's
                held_bytes = self._holder.take(self._left_bytes)
                assert held_bytes > 0
                print(f"\nthe other process holds {held_bytes / 2**30:.1f} GiB")
                self._holder = None
            torch.cuda.reset_peak_memory_stats()
            before_bytes = torch.cuda.memory_allocated()
            shares = step(batch, last=last)
            self.losses.append(sum(float(each) for each in shares.values()))
            self.taken_bytes = max(self.taken_bytes, torch.cuda.max_memory_allocated() - before_bytes)
            return shares

        return run


@pytest.fixture(autouse=True, scope="module")
def _exact() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before


def _trained(
    folder: Path, scenes: Path, watched: _Watched, *, graph: bool
) -> tuple[dict[str, Any], list[str]]:
    """Train, and return the plan at the end and all warnings about plans."""
    folder.mkdir()
    job = write_job(folder / "job.toml", scenes)
    asked = {
        "model.levels": 4,
        "model.width": 64,
        "train.epochs": 1,
        "train.tile_px": 128,
        "train.batch": BATCH,
        "train.samples_per_epoch": BATCH * NUM_STEPS,
        "train.lr": 1e-4,
        "train.precision": "fp32",
        "train.graph": str(graph).lower(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose", watched.compose)
        patch.setattr(recording, "why_no_trial", lambda *_: None)  # a training of 12 steps would do without
        overrides = [f"{key}={value}" for key, value in asked.items()]
        train(job, overrides=overrides, device_name="cuda", mode="new", reporter=Reporter("quiet"))
    torch.cuda.empty_cache()
    run = RunFolder(folder / "run")
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    told = [line["warning"] for line in lines if line["kind"] == "plan"]
    return json.loads(run.plan.read_text())["train"], told


@pytest.fixture(scope="module")
def alone(
    _exact: None, tmp_path_factory: pytest.TempPathFactory, scenes: Path
) -> tuple[_Watched, dict[str, Any]]:
    """A training that nobody disturbs, and its plan."""
    watched = _Watched()
    plan, told = _trained(tmp_path_factory.mktemp("shortage") / "alone", scenes, watched, graph=False)
    assert told == []
    assert len(watched.losses) == NUM_STEPS
    assert watched.losses[-1] < watched.losses[0]
    return watched, plan


@pytest.mark.parametrize(
    ("graph", "at_step", "is_short"),
    [
        pytest.param(False, 6, True, id="called"),
        pytest.param(True, 1, True, id="not yet recorded"),
        pytest.param(True, 6, False, id="recorded"),  # it holds its memory, and nobody can take it
    ],
)
def test_a_training_survives_another_process_that_takes_memory(
    tmp_path: Path,
    scenes: Path,
    alone: tuple[_Watched, dict[str, Any]],
    graph: bool,
    at_step: int,
    is_short: bool,
) -> None:
    undisturbed, before = alone
    with _holder() as holder:
        beset = _Watched(holder, int(LEFT * undisturbed.taken_bytes), at_step)
        after, told = _trained(tmp_path / "beset", scenes, beset, graph=graph)
    print("\n".join(told))
    print(f"alone {undisturbed.losses}\nbeset {beset.losses}")
    assert after["graph"] or is_short  # a recorded step is what it is about
    assert bool(told) == is_short
    assert all(text.startswith("memory ran out: ") for text in told)
    assert not is_short or after["peak_bytes"] < before["peak_bytes"]
    assert after["exact"]
    assert beset.losses == pytest.approx(undisturbed.losses, rel=1e-3)
