"""What a model does on shapes alone is written down with where each tensor comes from."""

from __future__ import annotations

import torch
from tests.measure.nets import BANDS, Net, conv
from torch import Tensor, nn

from outsize.measure.trying.logged import Done, log_of

SHAPE = (2, BANDS, 20, 30)


def _log(function: object, **modules: nn.Module) -> list[Done]:
    return log_of(Net(function, **modules), SHAPE)  # type: ignore[arg-type]


def test_weights_and_results_are_told_by_their_makers() -> None:
    first, second, answer = _log(lambda n, x: n.a(x) * 2, a=conv())
    assert (first.module, first.name, second.name, answer.name) == ("a", "convolution", "mul", "the answer")
    assert [name for name, _ in first.given] == ["the picture", "a.weight", "a.bias"]
    assert second.given == (((1, 0), ()),)
    assert 2 in second.numbers
    assert answer.given == (((2, 0), ()),)


def test_views_are_part_of_where_a_tensor_comes_from() -> None:
    def turned(_: nn.Module, x: Tensor) -> Tensor:
        y = x.view(2, 2, 2, 20, 30).view(2, BANDS, 600)
        return y.transpose(1, 2).contiguous() + 1

    added, _ = _log(turned)
    assert added.given == (("the picture", (("shaped", 3), (0, 2, 1))),)
    assert added.sizes == (2, BANDS, 600)  # of two shapes, one after the other, the last


def test_a_slice_is_told_by_where_it_begins_however_it_is_written() -> None:
    for cut in (slice(-4, None), slice(26, 30)):
        added = _log(lambda _, x, cut=cut: x[..., cut] + 1)[0]
        assert added.given == (("the picture", (("sliced", 3, 1),)),)
        assert added.sizes == (26, 4)
    assert _log(lambda _, x: x[..., :99] + 1)[0].given == (("the picture", ()),)  # all of it


def test_constants_are_told_by_their_values() -> None:
    def scaled(number: float) -> object:
        return _log(lambda _, x: x * (torch.tensor(number) + 1))[0].given

    assert scaled(2.0) == scaled(2.0)
    assert scaled(2.0) != scaled(3.0)


def test_the_model_is_as_it_was() -> None:
    net = Net(lambda n, x: setattr(n, "calls", 5) or x + n.mean.add_(1))
    log_of(net, SHAPE)
    assert net.calls == 0
    assert not net.mean.any()
