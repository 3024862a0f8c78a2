"""Functions that run for some samples at a time, and once more in backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.strategies.kernels.sliced import in_slices


def _run(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(torch.cat((x.tanh(), y), 1), weight, bias)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("biased", [True, False])
def test_slices_are_the_whole(at_once: int, biased: bool) -> None:
    torch.manual_seed(0)
    given = [torch.randn(5, 3), torch.randn(5, 2), torch.randn(4, 5), torch.randn(4) if biased else None]
    found = []
    for sliced in (False, True):
        x, y, weight, bias = (None if each is None else each.double().requires_grad_() for each in given)
        assert x is not None
        assert y is not None
        assert weight is not None
        made = in_slices(_run, [x, y], [weight, bias], at_once) if sliced else _run(x, y, weight, bias)
        made.square().sum().backward()
        grads = [each.grad for each in (x, y, weight, bias) if each is not None]
        found.append([made, *grads])
    for one, other in zip(*found, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_what_wants_no_gradient_gets_none_and_what_is_unused_stays_without() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    unused = torch.randn(2, requires_grad=True)
    made = in_slices(lambda x, y, _: x * y, [x, y], [unused], 1)
    made.sum().backward()
    assert torch.equal(x.grad, y)
    assert y.grad is None
    assert unused.grad is None


def test_nothing_is_kept_but_what_goes_in() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        made = in_slices(lambda x: x.exp().sin().tanh(), [x], [], 2)
        assert [each.data_ptr() for each in kept] == [x.data_ptr()]
        made.sum().backward()  # what runs again asks no hook of others
    assert len(kept) == 1
