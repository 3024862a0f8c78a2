"""The switch: a mode that is on in some calls of modules and off in all others, whatever happens in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from outsize.strategies.saved.switch import Switch


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.between: TorchDispatchMode | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = x.cos()
        if self.between is None:
            x = self.inner(x)
        else:
            with self.between:
                x = self.inner(x)
        return self.inner(x.tan())


_OUTSIDE, _FIRST, _SECOND = ("", 0), ("inner", 0), ("inner", 1)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({_FIRST}, ["sin"]),
        ({_SECOND}, ["sin"]),
        ({_OUTSIDE}, ["cos", "tan", "exp"]),
        ({_OUTSIDE, _SECOND}, ["cos", "tan", "sin", "exp"]),
        ({("elsewhere", 0)}, []),
    ],
)
def test_on_in_some_places_and_off_in_others(places: set[tuple[str, int]], expected: list[str]) -> None:
    model, log, x = Outer(), Log(), torch.ones(2)
    with Switch(model) as where, where.only_in(log, frozenset(places)):
        model(x).exp()
        where.begin_step()
    assert log.seen == expected
    assert _get_current_dispatch_mode() is None
    model(x)
    assert log.seen == expected


@pytest.mark.parametrize("places", [{_OUTSIDE}, {_FIRST}, {_OUTSIDE, _FIRST}])
def test_modes_of_others_in_between(places: set[tuple[str, int]]) -> None:
    model, log, other = Outer(), Log(), Log()
    model.between = other
    with Switch(model) as where, where.only_in(log, frozenset(places)):
        model(torch.ones(2))
    assert other.seen == ["sin"]
    assert "sin" in log.seen  # on where it is wanted, or where it could not be taken from below the other
    assert _get_current_dispatch_mode() is None


def test_off_after_an_exception() -> None:
    model, log = Outer(), Log()
    model.inner.register_forward_hook(lambda *_: 1 / 0)
    for places in ({_FIRST}, {_OUTSIDE}):
        with pytest.raises(ZeroDivisionError), Switch(model) as where, where.only_in(log, frozenset(places)):
            model(torch.ones(2))
        assert _get_current_dispatch_mode() is None
