"""Which call of which module runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.where import Where


class _Twice(nn.Module):
    def __init__(self, seen: list[tuple[str, int]]) -> None:
        super().__init__()
        self.inner = nn.ReLU()
        self.seen = seen
        self.where: Where | None = None

    def forward(self, values: Tensor) -> Tensor:
        assert self.where is not None
        first = self.inner(values)
        self.seen.append(self.where.here)
        return self.inner(first)


def test_paths_and_calls() -> None:
    seen: list[tuple[str, int]] = []
    model = nn.Sequential(nn.Identity(), _Twice(seen))
    inner: list[tuple[str, int]] = []
    with Where(model) as where:
        model[1].where = where  # type: ignore[union-attr, assignment]
        model[1].inner.register_forward_hook(lambda *_: inner.append(where.here))  # type: ignore[union-attr]
        assert where.here == ("", 0)
        model(torch.zeros(1))
        model(torch.zeros(1))
        assert seen == [("1", 0), ("1", 1)]
        assert list(where.called) == ["", "0", "1", "1.inner"]
        where.begin_step()
        model(torch.zeros(1))
    assert seen[-1] == ("1", 0)
    model(torch.zeros(1))
    assert where.here == ("", 0)


def test_an_exception_leaves_no_module_behind() -> None:
    class Broken(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            raise RuntimeError("broken")

    model = nn.Sequential(Broken())
    with Where(model) as where:
        with pytest.raises(RuntimeError):
            model(torch.zeros(1))
        assert where.here == ("", 0)


def test_modules_of_others_pass_unseen() -> None:
    model, other = nn.Sequential(nn.ReLU()), nn.ReLU()
    with Where(model) as where:
        other(torch.zeros(1))
        assert list(where.called) == []


def test_a_step_may_begin_inside_a_module() -> None:
    model = nn.Sequential(nn.ReLU())
    seen = []
    with Where(model) as where:
        model(torch.zeros(1))
        model.register_forward_pre_hook(lambda *_: where.begin_step())
        model[0].register_forward_pre_hook(lambda *_: seen.append(where.here))
        model(torch.zeros(1))
        model(torch.zeros(1))
    assert seen == [("0", 0), ("0", 0)]
