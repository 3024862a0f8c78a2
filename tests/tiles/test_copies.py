"""A copy takes the values of one operand; a second one only names a precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from outsize.measure.graphs.exporting import example_shape, trace
from outsize.tiles.halo import Reach, derive_halo


class Net(nn.Module):
    def __init__(self, function: Callable[[nn.Conv2d, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda conv, x: conv(x.type_as(conv.weight)),
        lambda conv, x: conv(x.to(conv.weight)),
        lambda conv, x: conv(x) + conv.bias.type_as(x)[:, None, None],
        lambda conv, x: conv(x).type_as(x),
    ],
)
def test_what_only_names_a_precision_is_not_looked_at(function: Callable[..., Tensor]) -> None:
    halo = derive_halo(trace(Net(function), example_shape(3)))
    assert halo.obstacles == ()
    assert halo.rows == halo.cols == Reach(1, 1)


def test_a_picture_that_only_names_a_precision_needs_no_surroundings() -> None:
    # the convolved picture is dropped: what is left looks at single pixels
    halo = derive_halo(trace(Net(lambda conv, x: (2 * x).type_as(conv(x))), example_shape(3)))
    assert halo.obstacles == ()
    assert halo.rows == halo.cols == Reach(0, 0)
