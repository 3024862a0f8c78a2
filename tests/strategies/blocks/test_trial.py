"""Blocks that must not run again are found by running each twice, and nothing of that stays."""

from __future__ import annotations

import pytest
import torch
from tests.planning.odd_blocks import ODD, Block, Net
from torch import Tensor, nn

from outsize.measure.state.before import left_as_it_was
from outsize.strategies.blocks.trial import unfit

_EXAMPLE = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
_PATHS = [f"blocks.{place}" for place in range(4)]


def _reasons(name: str) -> set[str]:
    torch.manual_seed(0)
    model = ODD[name]().train()
    with left_as_it_was(model):
        return set(unfit(model, _PATHS, lambda: model(_EXAMPLE)).values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("draws: a generator of its own", "Generator of its own"),
        ("draws: Python's random", "changes Python's random"),
        ("draws: torch's rrelu", "saved already"),
        ("keeps: an attribute", "changes count"),
        ("keeps: an iterator", "changes steps"),
        ("keeps: a module in a list", "changes hidden.0.weight"),
        ("given: a dataclass", "changes an argument"),
        ("hooks: a forward hook inside", "hook on 'up'"),
    ],
)
def test_why_a_block_is_unfit_is_said(name: str, reason: str) -> None:
    (found,) = _reasons(name)
    assert reason in found


@pytest.mark.parametrize(
    "name",
    [
        "draws: torch's dropout", "given: a list", "keeps: a buffer in place", "hooks: weight and spectral norm",
        "others: batch norm", "others: an LSTM", "others: a constant that is made once", "others: a gradient inside",
    ],
)  # fmt: skip
def test_a_block_that_does_the_same_is_fit(name: str) -> None:
    assert _reasons(name) == set()


def test_the_forward_is_the_plain_one_and_keeps_nothing() -> None:
    torch.manual_seed(0)
    model = Net(Block)
    expected = model(_EXAMPLE)
    found: list[Tensor] = []
    assert unfit(model, _PATHS, lambda: found.append(model(_EXAMPLE))) == {}
    assert torch.equal(found[0], expected)
    assert not any("forward" in vars(each) for each in model.modules())
    with pytest.raises(RuntimeError):
        found[0].sum().backward()


def test_what_fails_when_it_runs_again_is_unfit() -> None:
    class Once(Block):
        done = False

        def odd(self, h: Tensor) -> Tensor:
            if torch.is_grad_enabled() and given.pop() is None:
                raise ValueError
            return h

    given = [1, 2, 3, 4]
    model = nn.Sequential(Once())
    (reason,) = unfit(model, ["0"], lambda: model(torch.randn(2, 4, 16))).values()
    assert "changes" in reason
    given[:] = [1]
    (reason,) = unfit(model, ["0"], lambda: model(torch.randn(2, 4, 16))).values()
    assert "fails when it runs again (IndexError" in reason
