"""`outsize.within` around modules that do unusual things with tensors and buffers: the gradients are those of plain."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import outsize
from outsize.errors import ModelError, PlanError
from outsize.measure.tracing.recorder import record
from outsize.plan.cost import StepCost


def _layer(num_in: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(num_in, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())


class _Spectrum(nn.Module):
    """Saves a tensor and its conjugate, which is a view of the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_layer(3), _layer(8), _layer(8))

    def forward(self, images: Tensor) -> Tensor:
        found = torch.fft.rfft2(self.body(images)[:, :, :8, :8])
        power: Tensor = (found * found.conj() * found).real
        return power + found.imag.square()  # the imaginary part of a conjugate is a negative view


class _Centred(nn.Module):
    """Takes a mean away that it keeps in a buffer, and changes the buffer behind that."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.second, self.head = how, _layer(3), _layer(8), nn.Conv2d(8, 2, 1)
        self.register_buffer("mean", torch.zeros(8, 1, 1))
        self.mean: Tensor

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        found: Tensor = self.head(self.second(nn.functional.silu(first - self.mean)))
        new = first.detach().mean((0, 2, 3)).view(8, 1, 1)
        if self.how == "in place":
            self.mean.lerp_(new, 0.1)
        else:
            self.mean.data.mul_(0.9).add_(0.1 * new)
        return found


class _Moving(nn.Module):
    """Puts another tensor in the place of its buffer, and goes on with that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("mean", torch.zeros(16))
        self.mean: Tensor

    def forward(self, values: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * values.detach().mean((0, 1))
        values = values - self.mean
        found: Tensor = values + self.outer(nn.functional.gelu(self.inner(values)))
        return found


class _OfViews(nn.Sequential):
    """Instance norm returns a view of all that it makes, and the activation changes that in place."""

    def __init__(self) -> None:
        def layer(num_in: int) -> list[nn.Module]:
            conv, norm = nn.Conv2d(num_in, 8, 3, padding=1), nn.InstanceNorm2d(8)
            return [conv, norm, nn.LeakyReLU(0.1, inplace=True)]

        super().__init__(*layer(3), *layer(8), *layer(8), *layer(8), nn.Conv2d(8, 2, 1))


def test_what_is_changed_in_place_through_a_view_is_made_again() -> None:
    example = torch.randn(2, 3, 64, 64)
    peak_bytes = outsize.within(_OfViews(), example, "1GiB", optimizer=None).plan.peak_bytes
    model = _OfViews()
    fit = outsize.within(model, example, int(0.65 * peak_bytes / 0.7), optimizer=None, loss=_square)
    for _ in range(2):
        with fit, warnings.catch_warnings():
            warnings.simplefilter("error")  # of tensors that are kept
            facts = record(lambda: _square(model, example).backward(), model, given=[example])
        assert StepCost(facts).peak_bytes() == pytest.approx(fit.plan.peak_bytes, rel=0.02)
        model.zero_grad(set_to_none=True)


def _square(model: nn.Module, example: Tensor) -> Tensor:
    found: Tensor = model(example).square().mean()
    return found


class _Gated(nn.Module):
    """Adds up what its gates let through; nobody saves a sum, nor what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 16, 1), nn.Conv1d(16, 4, 1)
        dilations = [2**each for each in range(4)]
        self.values = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=d, dilation=d) for d in dilations)
        self.gates = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=d, dilation=d) for d in dilations)
        self.skips = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in dilations)
        self.ons = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in dilations)

    def forward(self, rows: Tensor) -> Tensor:
        x, skip = self.first(rows), torch.zeros(())
        for value, gate, to_skip, on in zip(self.values, self.gates, self.skips, self.ons, strict=True):
            found = value(x).tanh() * gate(x).sigmoid()
            skip, x = skip + to_skip(found), x + on(found)
        last: Tensor = self.last(skip.relu())
        return last


@pytest.mark.parametrize("share", [0.95, 0.6])
def test_a_sum_that_nobody_saves_holds_nothing_of_what_was_added(share: float) -> None:
    model, example = _Gated(), torch.randn(4, 3, 256)
    peak_bytes = outsize.within(model, example, "1GiB", optimizer=None, loss=_square).plan.peak_bytes
    with outsize.within(model, example, int(share * peak_bytes / 0.7), optimizer=None, loss=_square) as fit:
        for _ in range(2):  # the first is watched operation by operation
            facts = record(lambda: _square(model, example).backward(), model, given=[example])
            assert StepCost(facts).peak_bytes() == pytest.approx(fit.plan.peak_bytes, rel=0.01)
            model.zero_grad(set_to_none=True)


def _chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), _Moving(), _Moving(), _Moving(), nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(_Spectrum, (2, 3, 32, 32), id="conjugates"),
        pytest.param(lambda: _Centred("in place"), (2, 3, 24, 24), id="changed in place"),
        pytest.param(lambda: _Centred("data"), (2, 3, 24, 24), id="changed behind autograd's back"),
        pytest.param(_chain, (2, 64, 8), id="replaced"),
        pytest.param(_OfViews, (2, 3, 32, 32), id="views changed in place"),
    ],
)
def test_gradients_and_buffers_are_those_of_plain_steps(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    example = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 1
    expected = _trained(make, example, budget=None)
    assert expected is not None
    peak_bytes = outsize.within(make(), example, "1GiB", optimizer=None).plan.peak_bytes
    found = [_trained(make, example, int(share / 100 * peak_bytes / 0.7)) for share in range(95, 30, -10)]
    assert sum(each is not None for each in found) >= 2
    for each in found:
        assert each is None or all(map(torch.equal, each, expected))


def _trained(make: Callable[[], nn.Module], example: Tensor, budget: int | None) -> list[Tensor] | None:
    """Return gradients and buffers after two steps; None where the budget is too small."""
    torch.manual_seed(0)
    model = make()
    try:
        fit = nullcontext() if budget is None else outsize.within(model, example, budget, optimizer=None)
    except PlanError:
        return None
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with fit:
            _square(model, example).backward()
    return [each.grad for each in model.parameters() if each.grad is not None] + list(model.buffers())


class _Lazy(nn.Module):
    """Makes a buffer when it first runs, and looks at a number, so that it has to be run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3)
        self.register_buffer("ramp", None)

    def forward(self, images: Tensor) -> Tensor:
        if self.ramp is None:
            self.ramp = torch.linspace(0, 1, images.shape[-1])
        assert images.max().item() < 1e9
        found: Tensor = self.inner(images + self.ramp)
        return found


def test_a_buffer_that_a_real_step_makes_is_not_there_afterwards() -> None:
    model = _Lazy()
    fit = outsize.within(model, torch.randn(2, 3, 24, 24), "1GiB")
    assert fit.recorded is not None
    assert model.ramp is None


@pytest.mark.parametrize("where", ["a buffer", "the example"])
def test_sparse_tensors_are_refused_in_words(where: str) -> None:
    model, images = _layer(3), torch.randn(2, 3, 8, 8)
    if where == "a buffer":
        model.register_buffer("links", torch.eye(4).to_sparse())
    example = (torch.eye(4).to_sparse(), images) if where == "the example" else images
    name = {"a buffer": "links", "the example": "the example"}[where]
    with pytest.raises(
        ModelError, match=f"sparse tensors is not planned: found {name}, sparse_coo, needed dense"
    ):
        outsize.within(model, example, "1GiB")
