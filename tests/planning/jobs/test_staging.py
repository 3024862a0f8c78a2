"""Plans of jobs in stages, and those that cannot be: one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outsize import models
from outsize.commands.plan import plan
from outsize.errors import OutsizeError
from outsize.plan.plan import Plan
from outsize.planning import traced
from outsize.planning.jobs import planning
from outsize.progress import Reporter
from outsize.train import made_up


class Turned(torch.autograd.Function):
    """Its backward is not that of its forward: a trace would hold the forward alone."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class WithOwnBackward(nn.Module):
    """A convolution behind which gradients turn round."""

    def __init__(self, num_classes: int, in_channels: int = 4, **_: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = Turned.apply(self.conv(images))
        return made


def _planned(job_path: Path, num_gpus: int, num_stages: int | None, *sets: str) -> str:
    said: list[str] = []

    class Told(Reporter):
        def say(self, event: str, text: str, **fields: Any) -> None:
            said.append(text)

    how: dict[str, Any] = {"num_gpus": num_gpus, "stages": num_stages}
    plan(job_path, overrides=sets, device_name="cpu", reporter=Told("quiet"), **how)
    return "\n".join(said)


def test_stages_are_planned_with_their_reasons(job_path: Path) -> None:
    told = _planned(job_path, 4, 2, "train.batch=4")
    assert "2 of 4 samples on each of 2 pipelines of 2 stages" in told
    assert "2 replicas of it share a batch" in told
    assert "train: exact" in told
    assert "approximate: encoder.0.1" in told, "batch norm in micro-batches is another result"


@pytest.mark.parametrize(
    ("num_gpus", "num_stages", "sets", "said"),
    [
        (3, 2, [], "GPUs are left over: found --stages 2 with 3 GPUs"),
        (40, 40, ["train.batch=40"], "there are more stages than layers"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    job_path: Path, num_gpus: int, num_stages: int, sets: list[str], said: str
) -> None:
    with pytest.raises(OutsizeError, match=said) as raised:
        _planned(job_path, num_gpus, num_stages, *sets)
    assert "\n" not in str(raised.value)


def test_a_network_that_a_trace_would_change_is_refused(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.MODELS, "unet", WithOwnBackward)
    with pytest.raises(OutsizeError, match="Turned has a backward of its own") as raised:
        _planned(job_path, 2, 2)
    assert "\n" not in str(raised.value)


def test_large_pictures_are_traced_as_shapes_alone(job_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _planned(job_path, 2, 2)
    made: list[tuple[int, ...]] = []
    make_up = made_up.make_up_batch

    def noting(*args: Any, **how: Any) -> Any:
        made.append(args[3])
        return make_up(*args, **how)

    monkeypatch.setattr(made_up, "make_up_batch", noting)
    monkeypatch.setattr(traced, "_MOST_MADE_UP", 2000)
    assert _planned(job_path, 2, 2) == told
    assert made
    assert all(height * width <= 32**2 for *_, height, width in made)


def test_several_gpus_take_stages_where_the_whole_model_is_slower_or_not_exact(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _planned(job_path, 2, None, "train.batch=4")
    assert "stages" not in said, "all of it fits, and replicas never wait"

    def swapping(plan: Plan) -> bool:
        return True

    monkeypatch.setattr(planning, "gives_up_much", swapping)
    said = _planned(job_path, 2, None, "train.batch=4")
    assert "rejected 2 stages: slower: " in said
