"""The ConvLSTM: sizes, its equations, and that it remembers."""

from __future__ import annotations

import pytest
import torch

from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.convlstm import ConvLSTM, ConvLSTMCell


@pytest.mark.parametrize(("bands", "stride"), [(3, 1), (3, 4), (5, 2)])
def test_any_size(bands: int, stride: int) -> None:
    model = build_model("convlstm", num_classes=2, in_channels=bands, num_in=3, width=4, stride=stride).eval()
    for height, width in ((16, 24), (13, 7)):
        assert model(torch.randn(2, bands, height, width)).shape == (2, 2, height, width)


def test_a_cell_is_its_equations() -> None:
    torch.manual_seed(0)
    cell = ConvLSTMCell(2, 3, 3)
    x, hidden, memory = torch.randn(1, 2, 4, 4), torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4)
    gates = torch.nn.functional.conv2d(
        torch.cat((x, hidden), 1), cell.gates.weight, cell.gates.bias, padding=1
    )
    i, f, o, g = (gates[:, 3 * each : 3 * each + 3] for each in range(4))
    kept = f.sigmoid() * memory + i.sigmoid() * g.tanh()
    found_hidden, found_memory = cell(x, (hidden, memory))
    torch.testing.assert_close(found_memory, kept)
    torch.testing.assert_close(found_hidden, o.sigmoid() * kept.tanh())
    assert cell.gates.bias is not None
    assert cell.gates.bias[3:6].tolist() == [1, 1, 1]


def test_every_frame_matters_and_each_lead_sees_its_own() -> None:
    torch.manual_seed(0)
    model = ConvLSTM(in_channels=5, num_classes=2, num_in=3, width=4, layers=2, stride=2)
    frames = torch.randn(1, 5, 8, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(model(frames)[0, 0].sum(), frames)
    seen = grad.abs().amax((0, 2, 3)) > 0
    assert seen.tolist() == [
        True,
        True,
        True,
        True,
        False,
    ]  # the first lead does not see what is for the second


def test_what_it_does_not_say_follows_from_the_bands() -> None:
    assert ConvLSTM(in_channels=4, num_classes=4, width=2).num_in == 4
    assert ConvLSTM(in_channels=9, num_classes=4, num_in=5, width=2).settings == {"num_in": 5}
    zero = ConvLSTM(in_channels=2, num_classes=2, width=2, zero_head=True)
    assert float(zero(torch.randn(1, 2, 8, 8)).detach().abs().max()) == 0
    for options, words in (
        ({}, "num_in"),
        ({"num_in": 3}, "num_in"),
        ({"kernel": 4}, "odd"),
        ({"width": 0}, "width"),
    ):
        with pytest.raises(ModelError, match=words):
            ConvLSTM(**{"in_channels": 9, "num_classes": 4, "width": 2, **options})
