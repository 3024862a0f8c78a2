"""A model is tried before its tiles are believed: what depends on size, place, batch or history is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.trying.trial import BATCH, HISTORY, PLACE, try_history, try_tiling
from outsize.tiles.halo import Halo, Reach

HALO = Halo(Reach(1, 1), Reach(1, 1), 2)


class Changed(nn.Module):
    """A layer, and something done to its output in a module of its own."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)
        self.inner = _Inner(change)

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.inner(self.layer(images))
        return changed


class _Inner(nn.Module):
    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.calls = 0
        self.seen: list[int] = []
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self, x)


def _counted(net: nn.Module, x: Tensor) -> Tensor:
    net.calls += 1  # type: ignore[operator]
    net.seen.append(net.calls)  # type: ignore[operator,arg-type,union-attr]
    return x if len(net.seen) < 5 else x * 2  # type: ignore[arg-type]


def _averaged(net: nn.Module, x: Tensor) -> Tensor:
    net.mean.lerp_(x.mean(), 0.1)  # type: ignore[operator,union-attr]
    return x + net.mean  # type: ignore[operator]


FOUND: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "size": (lambda _, x: x * (x.shape[-1] / 512), PLACE),
    "place": (lambda _, x: x + torch.linspace(0, 1, x.shape[-2], dtype=x.dtype)[:, None], PLACE),
    "batch": (lambda _, x: x - x.amax(0), BATCH),
    "number of samples": (lambda _, x: x / len(x), BATCH),
    "noise": (lambda _, x: x + torch.randn(3, 1, 1, dtype=x.dtype), HISTORY),
    "counter": (_counted, HISTORY),
    "buffer": (_averaged, HISTORY),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_differs_is_named_and_put_back(name: str) -> None:
    change, reason = FOUND[name]
    model = Changed(change).train()
    torch.manual_seed(3)
    drawn = torch.random.get_rng_state()
    [found] = try_tiling(model, HALO, 3)
    assert (found.module, found.reason) == ("inner", reason)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert (model.inner.calls, model.inner.seen, float(model.inner.mean)) == (0, [], 0.0)
    assert model.training
    assert model.layer.weight.dtype == torch.float32


def _in_single(net: nn.Module, x: Tensor) -> Tensor:
    return _counted(net, x) if x.dtype == torch.float32 else x


def test_what_only_its_own_precision_shows_is_found() -> None:
    [found] = try_tiling(Changed(_in_single), HALO, 3)
    assert (found.module, found.reason) == ("inner", HISTORY)
    assert try_tiling(Changed(_in_single).double(), HALO, 3) == ()


def test_a_model_may_change_the_picture_that_it_is_given() -> None:
    assert try_tiling(lambda x: x.mul_(2).relu(), HALO, 3) == ()
    assert try_tiling(Changed(lambda _, x: x.add_(1)), HALO, 3) == ()


def test_answers_that_are_written_over_one_another_are_compared() -> None:
    kept = torch.zeros(1)

    def answered(x: Tensor) -> Tensor:
        return kept.resize_(x.shape).copy_(x / x.shape[-1])

    [found] = try_tiling(answered, HALO, 3)
    assert found.reason == PLACE


def test_nothing_is_found_where_nothing_differs() -> None:
    assert try_tiling(Changed(lambda _, x: x.relu()), HALO, 3) == ()


def test_any_callable_can_be_tried() -> None:
    assert try_tiling(torch.relu, HALO, 3) == ()
    [found] = try_tiling(lambda x: x / x.shape[-1], HALO, 3)
    assert (found.module, found.reason) == ("", PLACE)


def test_a_model_that_takes_single_precision_only_is_tried_in_it() -> None:
    layer = nn.Conv2d(3, 3, 1)
    assert try_tiling(Changed(lambda _, x: layer(x.float())), HALO, 3) == ()


def test_a_model_that_does_not_run_is_told() -> None:
    [found] = try_tiling(nn.Conv2d(5, 5, 1), HALO, 3)
    assert "RuntimeError" in found.reason


def test_history_alone_is_tried_where_nothing_is_cut() -> None:
    [found] = try_history(Changed(_counted), 1, 3)
    assert (found.module, found.reason) == ("inner", HISTORY)
    assert try_history(Changed(lambda _, x: x - x.mean()), 1, 3) == ()
    mirrored = Changed(lambda _, x: nn.functional.pad(x, (24,) * 4, mode="reflect"))
    assert try_history(mirrored, 1, 3) == ()  # less than 25 px would be too few
