"""What autograd's graph tells of how tensors were made: enough to watch no operation, and never more than is so."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode

from outsize.models import build_model
from outsize.plan.times import TOLD_BY_GRAPH
from outsize.strategies.saved import lineage, recipes
from outsize.strategies.saved.hooks import SavedTensors, recomputable
from outsize.strategies.saved.packing import unpack
from outsize.strategies.saved.recipes import Normed
from outsize.strategies.saved.values import Kept

_IMAGES = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """conv - norm - something - conv, where the something may change from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 1)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 3, 1)
        self.how = "relu"
        self.watched: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.watched.append(_get_current_dispatch_mode() is not None)
        normed = self.norm(self.first(x))
        side = self.other(self.side(x))
        match self.how:
            case "relu":
                out = normed.relu()
            case "in place":
                out = F.relu_(normed)
            case "norm":
                out = normed
            case "sum":
                out = normed + side
            case "sum and relu":
                out = F.relu_(normed.add_(side))
            case "scaled sum":
                out = torch.add(normed, side, alpha=0.5).relu()
            case "silu":
                out = F.silu(normed)
            case "broadcast":
                out = (self.norm(self.first(x).mean((2, 3), keepdim=True)) + side).relu()
            case "another type":
                out = (normed.bfloat16() + side).relu().to(normed.dtype)
            case "costly":
                out = normed.cumsum(1)
            case "no norm":
                out = self.first(x).relu()
            case "masked":  # as autograd does not see it
                out = normed
                with torch.no_grad():
                    out[:, ::2] *= 2
        return self.last(out)


def _net() -> tuple[Net, Net]:
    torch.manual_seed(3)
    model = Net()
    return model, copy.deepcopy(model)


def _step(model: Net, saved: SavedTensors, *, bf16: bool = False) -> None:
    model.zero_grad()
    with saved.forward(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(_IMAGES).float().square().sum()
    loss.backward()


def _assert_same_gradients(ours: Net, plain: Net, *, bf16: bool = False) -> None:
    plain.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = plain(_IMAGES).float().square().sum()
    loss.backward()
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad), name
    for a, b in zip(ours.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("how", ["relu", "in place", "norm", "sum", "sum and relu", "silu"])
def test_the_first_forward_is_watched_and_others_are_not(how: str, bf16: bool) -> None:
    ours, plain = _net()
    ours.how = plain.how = how
    twin = copy.deepcopy(ours)
    keys = recomputable(twin, lambda: twin(_IMAGES).sum())
    assert ("last", 0, 0) in keys
    with SavedTensors(ours, keys) as saved:
        for _ in range(3):
            _step(ours, saved, bf16=bf16)
            _assert_same_gradients(ours, plain, bf16=bf16)
            assert saved.stats is not None
            assert not saved.stats.refused
            assert saved.stats.num_recomputed == len(keys)
    assert ours.watched == [True, False, False]


@pytest.mark.parametrize(
    ("usual", "once"), [("relu", "no norm"), ("norm", "masked"), ("relu", "scaled sum"), ("relu", "in place")]
)
def test_what_a_step_does_otherwise_is_kept_in_that_step(usual: str, once: str) -> None:
    ours, plain = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        seen = []
        for each in (usual, usual, once, usual, usual):
            ours.how = plain.how = each
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
            assert saved.stats is not None
            seen.append(("last", 0, 0) in saved.stats.refused)
    assert seen == [False, False, True, False, False]
    assert ours.watched == [True, False, False, True, False]  # after what was not met, all is looked at again


def test_what_the_first_step_could_not_do_is_done_when_it_can() -> None:
    ours, plain = _net()
    seen = []
    with SavedTensors(ours, frozenset({("last", 0, 0)})) as saved:
        for each in ("costly", "costly", "norm", "norm", "norm"):
            ours.how = plain.how = each
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
            assert saved.stats is not None
            seen.append(saved.stats.num_recomputed)
    assert seen == [0, 0, 0, 1, 1]
    assert ours.watched == [True, False, False, True, False]


def test_a_forward_without_gradients_teaches_nothing() -> None:
    ours, plain = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        for _ in range(5):
            with torch.no_grad(), saved.forward():
                ours(_IMAGES)
            plain(_IMAGES)
        for _ in range(2):
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
            assert saved.stats is not None
            assert saved.stats.num_recomputed == 2
    assert ours.watched == [True] * 6 + [False]


def test_what_is_never_saved_is_not_waited_for() -> None:
    ours, _ = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0), ("elsewhere", 0, 0)})) as saved:
        for _ in range(5):
            _step(ours, saved)
            assert saved.stats is not None
            assert saved.stats.num_recomputed == 2
            assert saved.stats.unmet == {("elsewhere", 0, 0)}
    assert ours.watched == [True, True, True, False, False]


def test_a_model_that_never_does_the_same_is_watched_in_the_end() -> None:
    ours, plain = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        for each in ("relu", "in place") * 6:
            ours.how = plain.how = each
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
    assert ours.watched == [True, False] * 3 + [True] * 6
    assert saved.stats is not None
    assert saved.stats.num_recomputed == 2


def test_fused_where_the_graph_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.FUSE, "cpu", True)
    ours, plain = _net()
    ours.how = plain.how = "sum and relu"
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        for _ in range(3):
            _step(ours, saved)
            plain.zero_grad()
            plain(_IMAGES).square().sum().backward()
            for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    assert ours.watched == [True, False, False]
    assert saved.stats is not None
    assert saved.stats.num_recomputed == 2


@pytest.mark.parametrize(
    "case", ["frozen bias", "running statistics", "scaled sum", "broadcast", "another type"]
)
def test_what_the_graph_does_not_tell_is_watched(case: str) -> None:
    ours, plain = _net()
    for each in (ours, plain):
        each.how = case if case in ("scaled sum", "broadcast", "another type") else "relu"
        each.norm.bias.requires_grad_(case != "frozen bias")
        each.norm.train(case != "running statistics")
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        for _ in range(3):
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
            assert saved.stats is not None
            assert saved.stats.num_recomputed == 2
    assert ours.watched == [True] * 3


def test_changed_in_place_before_it_could_be_read() -> None:
    ours, plain = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        _step(ours, saved)
        _assert_same_gradients(ours, plain)
        changed = ours.norm.register_forward_hook(lambda _, args, __: _double(args[0]))
        with saved.forward():
            loss = ours(_IMAGES).square().sum()
        changed.remove()
        assert saved.stats is not None
        assert ("last", 0, 0) in saved.stats.refused  # what it would be made from is no more
        with pytest.raises(Exception, match="changed in place"):
            loss.backward()


def _double(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def test_a_graph_that_is_gone_teaches_nothing() -> None:
    ours, plain = _net()
    with SavedTensors(ours, frozenset({("last", 0, 0), ("", 0, 0)})) as saved:
        with saved.forward():
            ours(_IMAGES)
        plain(_IMAGES)
        for _ in range(2):
            _step(ours, saved)
            _assert_same_gradients(ours, plain)
            assert saved.stats is not None
            assert saved.stats.num_recomputed == 2


def test_norms_of_a_gpu_are_read_alike() -> None:
    """The node of cuDNN, which meta tensors have too, names its epsilon otherwise."""
    x, weight, bias = (
        torch.ones(size, device="meta", requires_grad=True) for size in ((2, 4, 3, 3), (4,), (4,))
    )

    def pack(tensor: Tensor) -> Any:
        return Kept(tensor.detach(), tensor._version, "")

    with saved_tensors_hooks(pack, unpack):
        out = torch.cudnn_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-3)[0].relu()
    recipe = lineage.read(out)
    assert isinstance(recipe, Normed)
    assert recipe.relu
    assert recipe.eps == pytest.approx(1e-3)
    assert recipe.func is torch.ops.aten.cudnn_batch_norm.default
    assert recipe.x.value.geometry[0] == x.shape


def test_a_residual_network_is_read_to_its_end() -> None:
    torch.manual_seed(3)
    model = build_model("smp:DeepLabV3Plus/resnet18", num_classes=3, in_channels=4)
    plain, twin = copy.deepcopy(model), copy.deepcopy(model)
    images = torch.randn(2, 4, 64, 64)
    keys = frozenset(key for key in recomputable(twin, lambda: twin(images).sum()) if ".layer" in key[0])
    with SavedTensors(model, keys) as saved:
        for step in range(2):
            for net in (model, plain):
                net.zero_grad()
                torch.manual_seed(step)  # of dropout
                with saved.forward() if net is model else nullcontext():
                    loss = net(images).square().sum()
                loss.backward()
            assert saved.stats is not None
            assert saved.stats.num_recomputed == len(keys) > 20
            for a, b in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
    assert {path for path, _, _ in saved._sites} == {"encoder.maxpool"}  # before the first of them


def test_the_planner_knows_what_the_graph_tells() -> None:
    funcs = [*lineage._NORM_FUNCS, *(func for func, _ in lineage._UNARY.values())]
    funcs += [torch.ops.aten.add.Tensor, torch.ops.aten._to_copy.default]
    assert {func._schema.name.removeprefix("aten::") for func in funcs} | {"fused_norm"} == TOLD_BY_GRAPH
