"""What an LSTM keeps for backward is counted to the byte, though its shapes do not show it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.tracing.recorder import record
from outsize.measure.tracing.recurrent import onednn_bytes
from outsize.measure.tracing.step import trace_step
from outsize.plan.cost import StepCost


class _Rows(nn.Module):
    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(32, 64, batch_first=True, **settings), nn.LazyLinear(8)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.head(self.rows(values)[0])
        return found


def _square(model: nn.Module, example: Tensor) -> Tensor:
    found: Tensor = model(example).square().mean()
    return found


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_layers": 2, "dropout": 0.3}, {"bidirectional": True}],
    ids=["one", "two", "both ways"],
)
def test_the_peak_of_an_lstm_is_what_a_real_step_takes(settings: dict[str, object]) -> None:
    model, example = _Rows(**settings), torch.randn(8, 50, 32)
    model(example)
    told = StepCost(trace_step(model, example, loss=_square, device="cpu")).peak_bytes()
    seen = StepCost(record(lambda: _square(model, example).backward(), model, given=[example])).peak_bytes()
    assert told == pytest.approx(seen, rel=0.001)


@pytest.mark.parametrize("shape", [(50, 8, 32, 64), (7, 3, 300, 50), (33, 5, 17, 256), (40, 6, 100, 99)])
def test_the_workspace_is_that_of_the_library(shape: tuple[int, int, int, int]) -> None:
    num_steps, num_samples, num_inputs, num_units = shape
    layer = nn.LSTM(num_inputs, num_units)
    workspaces: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.dtype is torch.uint8:
            workspaces.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(num_steps, num_samples, num_inputs))
    if not workspaces:
        pytest.skip("this build of torch has no oneDNN for an LSTM")
    assert workspaces == [onednn_bytes(*shape, 4)]
