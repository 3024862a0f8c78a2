"""Networks that look at the whole picture, in passes over tiles and whole: the same to the last digits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.infer.passes.zoo import Small, conv, make_zoo
from torch import nn

from outsize.infer.passes import compare
from outsize.infer.passes.keep import Keep
from outsize.infer.passes.operations import run
from outsize.infer.passes.pools import Statistics
from outsize.infer.passes.program import Program, program_for
from outsize.infer.passes.resize import resize
from outsize.infer.passes.run import PassRun
from outsize.tiles.passes import Walk
from outsize.tiles.window import Window

assert callable(run)
assert callable(resize)


def picture(size: tuple[int, int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((1, 3, *size), dtype=torch.float64, generator=generator).to(dtype)


@pytest.mark.parametrize("name", make_zoo())
def test_every_kind_of_operation(name: str) -> None:
    torch.manual_seed(0)
    model = make_zoo()[name].eval().double()
    apart, largest = compare(
        model, picture((37, 53)), 12
    )  # 4 x 5 cores, sides that are no multiple of anything
    assert apart <= 1e-13 * largest


def test_maps_on_disk_are_those_in_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = make_zoo()["nested squeezes"].eval().double(), picture((40, 48))
    program = program_for(model, 3, (40, 48), 1)
    cores = [work.core for work in Walk(program.laid, program.laid.num_passes - 1, 16).works()]
    answers, seen = [], 0
    for folder in (None, tmp_path):
        keep, answer = Keep(folder), torch.full((1, 4, 40, 48), torch.nan, dtype=torch.float64)
        going = PassRun(
            program,
            lambda window: inputs[(..., *window.slices)],
            keep,
            inputs.device,
            cores_px=[16] * program.laid.num_passes,
        )
        for core, logits in going.last(cores):
            seen += len(list(tmp_path.iterdir()))
            answer[(..., *core.slices)] = logits
        keep.close()
        answers.append(answer)
    assert seen
    assert torch.equal(*answers)
    assert list(tmp_path.iterdir()) == []


def test_cores_of_any_size_in_any_pass() -> None:
    torch.manual_seed(0)
    model, inputs = make_zoo()["bins"].eval().double(), picture((41, 30))
    program = Program(model, 3, (41, 30))
    with torch.inference_mode():
        whole = model(inputs)
    going = PassRun(
        program, lambda window: inputs[(..., *window.slices)], Keep(None), inputs.device, cores_px=(7, 16)
    )
    core = Window(16, 16, 16, 14)
    [(found, logits)] = going.last([core])
    assert found == core
    assert float((logits - whole[(..., *core.slices)]).abs().max()) <= 1e-13


def test_weights_are_those_of_now() -> None:
    torch.manual_seed(0)
    model = make_zoo()["mean of all"].eval().double()
    before = compare(model, picture((20, 20)), 8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    apart, largest = compare(model, picture((20, 20)), 8)
    assert largest > 2 * before[1]
    assert apart <= 1e-13 * largest


def test_noise_and_changed_buffers_are_named() -> None:
    noisy = Small(lambda m, x: m[0](x) + torch.randn_like(x[:, :1]), conv(3, 4)).eval()
    assert "random" in str(Program(noisy, 3, (16, 16)).laid.obstacles[0])

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = conv(3, 4)
            self.register_buffer("runs", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.runs.add_(1)  # type: ignore[operator]
            made: torch.Tensor = self.layer(x) * self.runs
            return made

    found = [str(each) for each in Program(Counting().eval(), 3, (16, 16)).laid.obstacles]
    assert any("runs" in each and "changed" in each for each in found)


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    """Far from zero, where a difference of squares would lose all digits."""
    rows = 1e4 + torch.randn(1, 6, 20, 30, dtype=torch.float64)
    statistics = Statistics(3)
    for part in (rows[:, :, :7], rows[:, :, 7:, :11], rows[:, :, 7:, 11:]):
        statistics.add(part, Window(0, 0, 1, 1))
    mean, scale = statistics.result(6, 0.0)
    groups = rows.reshape(3, -1)
    assert torch.allclose(mean.flatten()[::2], groups.mean(1), rtol=1e-14)
    assert torch.allclose(scale.flatten()[::2], groups.var(1, correction=0).rsqrt(), rtol=1e-11)


class BadColumn(nn.Module):
    """Answers with NaN in the first column."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(x.shape[-1]) == 0, x / 0 * 0, x)


def test_a_difference_that_is_no_number_is_not_lost() -> None:
    found, _ = compare(BadColumn().eval(), picture((16, 16)), 8)
    assert math.isnan(found)
