"""Whole modules run again in backward: nothing but memory and time changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from outsize.errors import ModelError, PlanError
from outsize.measure.memory import LiveBytes
from outsize.models import build_model
from outsize.plan.step import Key
from outsize.strategies.blocks.checkpointing import checkpointed
from outsize.strategies.saved.hooks import SavedTensors, recomputable

_BLOCKS = ("encoder.0", "encoder.1", "bottleneck", "decoder.1")


class Dropping(nn.Module):
    """A network whose blocks draw random numbers, and one of which has two outputs and a keyword."""

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
            out = self.norm(self.conv(x)) * scale
            return out.relu(), nn.functional.dropout(out, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.fork, self.last = Dropping.Fork(), nn.Sequential(nn.Dropout(0.5), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.fork(x, scale=0.5)
        return self.last(a + b)


def _net() -> nn.Module:
    torch.manual_seed(2)
    return build_model("unet", num_classes=3, in_channels=4, levels=3, width=4)


@contextmanager
def _both(model: nn.Module, paths: tuple[str, ...], keys: frozenset[Key]) -> Iterator[SavedTensors]:
    with checkpointed(model, paths), SavedTensors(model, keys) as saved:
        yield saved


def _train(
    model: nn.Module, images: Tensor, paths: tuple[str, ...], steps: int, keys: frozenset[Key]
) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    with _both(model, paths, keys) as saved:
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with saved.forward():
                loss = model(images).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)


def _assert_equal_states(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("paths", [("bottleneck",), _BLOCKS], ids=["one", "all"])
def test_training_is_the_same_bit_by_bit(paths: tuple[str, ...]) -> None:
    plain, ours = _net(), _net()
    images = torch.randn(2, 4, 16, 16)
    expected = _train(plain, images, (), 20, frozenset())
    assert torch.equal(_train(ours, images, paths, 20, frozenset()), expected)
    _assert_equal_states(plain, ours)


def test_dropout_keywords_and_several_outputs() -> None:
    torch.manual_seed(2)
    plain = Dropping()
    ours = copy.deepcopy(plain)
    images = torch.randn(2, 4, 8, 8)
    expected = _train(plain, images, (), 20, frozenset())
    assert torch.equal(_train(ours, images, ("fork", "last"), 20, frozenset()), expected)
    _assert_equal_states(plain, ours)


def test_batch_norm_counts_a_batch_once() -> None:
    model = _net()
    _train(model, torch.randn(2, 4, 16, 16), _BLOCKS, 1, frozenset())
    counts = {int(each) for name, each in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert counts == {1}


def test_together_with_recomputed_tensors() -> None:
    plain, ours = _net(), _net()
    images = torch.randn(2, 4, 16, 16)
    paths = ("encoder.0", "bottleneck")
    twin = copy.deepcopy(ours)
    with checkpointed(twin, paths):
        keys = recomputable(twin, lambda: twin(images).square().mean())
    assert keys
    assert not any(path.startswith("bottleneck.") for path, _, _ in keys)  # their tensors are not autograd's
    expected = _train(plain, images, (), 20, frozenset())
    assert torch.equal(_train(ours, images, paths, 20, keys), expected)
    _assert_equal_states(plain, ours)


def test_less_is_held_than_by_either_alone() -> None:
    model = _net()
    images = torch.randn(2, 4, 32, 32)
    paths = ("encoder.0", "decoder.1")

    def held_bytes(paths: tuple[str, ...], keys: frozenset[Key]) -> int:
        with _both(model, paths, keys) as saved, LiveBytes() as live:
            with saved.forward():
                loss = model(images).square().mean()
            found = live.now_bytes
            loss.backward()
        return found

    with checkpointed(model, paths):
        joint = recomputable(model, lambda: model(images).square().mean())
    alone = recomputable(model, lambda: model(images).square().mean())
    both = held_bytes(paths, joint)
    assert both < held_bytes(paths, frozenset()) < held_bytes((), frozenset())
    assert both < held_bytes((), alone)


def test_the_model_is_left_as_it_was() -> None:
    model = _net()
    names = list(model.state_dict())
    with checkpointed(model, _BLOCKS):
        assert list(model.state_dict()) == names
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(RuntimeError, match="stop"), checkpointed(model, _BLOCKS):
        raise RuntimeError("stop")
    assert not any("forward" in vars(module) for module in model.modules())


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(PlanError, match=r"'encoder\.9'.*plan again"), checkpointed(_net(), ("encoder.9",)):
        pass


def test_a_list_that_the_caller_fills_further_is_the_blocks_own() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = _Sums()

        def forward(self, values: Tensor) -> Tensor:
            parts = [values]
            for _ in range(3):
                parts.append(self.block(parts))
            return parts[-1]

    class _Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, parts: list[Tensor]) -> Tensor:
            return torch.stack(parts).sum(0).tanh() * self.scale

    torch.manual_seed(0)
    model, values = Grows(), torch.randn(8)
    (wanted,) = torch.autograd.grad(model(values).sum(), [model.block.scale])
    with checkpointed(model, ["block"]):
        loss = model(values).sum()
    (found,) = torch.autograd.grad(loss, [model.block.scale])
    assert torch.equal(found, wanted)


def test_what_goes_into_a_block_is_seen_by_the_hooks_of_saved_tensors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU()), nn.Conv2d(2, 1, 1)
    )
    images = torch.randn(1, 1, 4, 4)
    between = model[0](images).detach()
    away: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        away.append(tensor.detach().clone())
        return len(away) - 1

    def unpack(place: int) -> Tensor:
        return away[place]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack), checkpointed(model, ("1",)):
        loss = model(images).sum()
    assert any(torch.equal(each, between) for each in away)
    loss.backward()
    found = [each.grad for each in model.parameters()]
    model.zero_grad()
    model(images).sum().backward()
    for one, other in zip(found, (each.grad for each in model.parameters()), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


class _Shifting(nn.Module):
    """A block that changes pictures in place before it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.conv(images.sub_(0.5).div_(2.0))
        return out


def test_an_input_without_gradient_that_a_block_changes_is_an_error() -> None:
    model = nn.Sequential(_Shifting(), nn.ReLU(), nn.Conv2d(2, 1, 1))
    with checkpointed(model, ("0",)):
        loss = model(torch.randn(1, 1, 4, 4)).sum()
    with pytest.raises(ModelError, match="changed in place"):
        loss.backward()


def test_a_block_that_reads_the_buffers_it_writes_runs_with_those_of_the_first_time() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 3, 3)), nn.ReLU())
    model = nn.Sequential(block, nn.Conv2d(3, 1, 1)).train()
    plain, images = copy.deepcopy(model), torch.randn(2, 1, 8, 8)
    plain(images).square().sum().backward()
    with checkpointed(model, ("0",)):
        model(images).square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name  # type: ignore[arg-type]
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)


class _Counting(nn.Module):
    """Counts its calls in a buffer that two of its modules share, and puts another in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.conv = nn.Module(), nn.Module(), nn.Conv2d(1, 2, 1)
        count = torch.zeros(())
        self.one.register_buffer("count", count)
        self.other.register_buffer("count", count)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.one.count.add_(1)
        self.mean = 0.5 * self.mean + 0.5 * images.detach().mean()
        found: Tensor = (self.conv(images) * self.other.count - self.mean).square()
        return found


def test_buffers_that_are_shared_or_replaced_are_those_of_the_first_run() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_Counting(), nn.Conv2d(2, 1, 1)).train()
    plain, images = copy.deepcopy(model), torch.randn(2, 1, 8, 8) + 3
    for _ in range(2):
        for net, paths in ((plain, ()), (model, ("0",))):
            net.zero_grad()
            with checkpointed(net, paths):
                net(images).square().sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
        for one, other in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(one, other)
    assert model[0].one.count is model[0].other.count


def test_a_copy_made_meanwhile_runs_with_its_own_weights() -> None:
    model, images = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())), torch.randn(1, 1, 4, 4)
    with checkpointed(model, ("0",)):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for each in twin.parameters():
                each.zero_()
        assert not twin(images).any()
    assert not twin(images).any()
    assert model(images).any()


def test_backward_may_run_through_a_block_twice() -> None:
    torch.manual_seed(3)
    model = Dropping()
    images = torch.randn(2, 4, 8, 8)
    with checkpointed(model, ("fork", "last")):
        loss = model(images).square().mean()
        once = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        twice = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
