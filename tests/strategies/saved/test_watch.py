"""The watch: sees what makes and what changes a tensor, and holds nothing that would else be free."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.plan.memory.recompute import CHEAP, COSTLY
from outsize.plan.step import Key
from outsize.strategies.saved import watch
from outsize.strategies.saved.hooks import SavedTensors, recomputable
from outsize.strategies.saved.watch import ForwardWatch

_IMAGES = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1))


def test_a_storage_has_a_value_from_one_change_to_the_next() -> None:
    weight = torch.ones(4, requires_grad=True)
    with ForwardWatch() as watch:
        out = weight * 2
        product = watch.value_of(out)
        assert watch.value_of(out.view(2, 2)) is product
        out.relu_()
        activated = watch.value_of(out)
        assert (product.depth, activated.depth) == (1, 2)
        out.cumsum_(0)  # not cheap: a new beginning
        assert watch.value_of(out).depth == 0
        with torch.no_grad():
            assert watch.value_of(weight * 2).depth == 0


@pytest.mark.parametrize("saves_its_result", [False, True])
@pytest.mark.parametrize("unseen", ["the version counter", "the watch"])
def test_changed_before_being_saved_where_one_of_two_guards_is_blind(
    unseen: str, saves_its_result: bool
) -> None:
    if saves_its_result and unseen == "the watch":
        pytest.skip("torch itself refuses that")

    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(self.first(x))
            out = F.relu(out) if saves_its_result else out
            if unseen == "the version counter":
                out.data.mul_(2)
            else:
                out.detach().numpy()[...] *= 2
                torch.autograd.graph.increment_version(out)
            return self.last(out).square()

    torch.manual_seed(3)
    model = Changes()
    plain = copy.deepcopy(model)
    images = torch.randn(2, 8, 8, 8)
    keys = frozenset({("last", 0, 0)} | ({("", 0, 0)} if saves_its_result else set()))
    with SavedTensors(model, keys) as saved:
        for _ in range(3):  # watched once, and then read from the graph
            with saved.forward():
                loss = model(images).sum()
            loss.backward()
            assert saved.stats is not None
            assert ("last", 0, 0) in saved.stats.refused
            plain(images).sum().backward()
            for a, b in zip(plain.parameters(), model.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("train", [True, False])
def test_dropout_of_a_gpu_takes_the_first_mask(train: bool) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.native_dropout(F.silu(self.conv(x)), 0.3, train)[0])

    model = Dropped()
    keys = recomputable(model, lambda: model(_IMAGES))
    assert ("last", 0, 0) in keys
    gradients = []
    for chosen in (frozenset[Key](), keys):
        model.zero_grad()
        torch.manual_seed(7)
        with SavedTensors(model, chosen) as saved:
            with saved.forward():
                loss = model(_IMAGES).square().sum()
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_what_nobody_needs_any_more_is_freed_within_forward() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
    seen = []
    model[1].register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out.untyped_storage())))
    with SavedTensors(model, frozenset()) as saved, saved.forward():
        logits = model(_IMAGES)
        assert seen[0]() is not None
        del logits
        assert seen[0]() is None


def test_images_are_prepared_again() -> None:
    class Prepares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = (x - 0.5) / 2
            with torch.autocast("cpu", torch.bfloat16):
                return self.first(F.pad(x, (1, 1, 1, 1))).square().sum()

    torch.manual_seed(3)
    model = Prepares()
    plain = copy.deepcopy(model)
    with SavedTensors(model, frozenset({("first", 0, 0)})) as saved:
        with saved.forward():
            loss = model(_IMAGES)
        loss.backward()
    assert saved.stats is not None
    assert saved.stats.num_recomputed == 1
    assert saved.stats.held_bytes == _IMAGES.nbytes
    plain(_IMAGES).backward()
    assert torch.equal(plain.first.weight.grad, model.first.weight.grad)


def test_a_frozen_encoder_is_freed_as_it_runs() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    for parameter in model[:3].parameters():
        parameter.requires_grad = False
    seen = []
    model[0].register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out.untyped_storage())))
    with SavedTensors(model, frozenset()) as saved, saved.forward():
        logits = model(_IMAGES)
        assert seen[0]() is None
        assert logits.requires_grad


def test_what_the_planner_counts_on_is_known_here() -> None:
    assert CHEAP <= watch._CHEAP
    assert COSTLY <= watch._COSTLY


def test_a_norm_without_weights_in_bfloat16_is_not_made_again_on_a_cpu() -> None:
    """Its statistics tell the type it computes in, and are not there the second time."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, affine=False)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    plain = copy.deepcopy(model)
    with SavedTensors(model, frozenset({("2", 0, 0), ("3", 0, 0)})) as saved:
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                with saved.forward():
                    loss = model(_IMAGES).float().square().mean()
                wanted = plain(_IMAGES).float().square().mean()
            loss.backward()
            wanted.backward()
            for a, b in zip(plain.parameters(), model.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
