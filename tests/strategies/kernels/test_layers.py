"""Fused layers do what torch's do: the same results, gradients and running statistics, and less is kept."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.targets import ClassRasters
from outsize.losses.cross_entropy import cross_entropy
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.models.resized import Resized
from outsize.models.unet import JoinedConv2d
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Fuse, Plan, plan_from_dict
from outsize.strategies.blocks.checkpointing import checkpointed
from outsize.strategies.compose import compose
from outsize.strategies.kernels import fused_layer
from outsize.strategies.kernels.join import joined
from outsize.strategies.kernels.layers import can_be_fused, fused_layers, fusible
from outsize.strategies.kernels.norm import batch_norm, fused
from outsize.strategies.saved.hooks import SavedTensors


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_ON_CPU", True)


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    loss: Tensor = model(images).float().square().mean()
    return loss


def _fusible(model: nn.Module, images: Tensor) -> Fuse:
    return fusible(model, trace_step(model, tuple(images.shape), loss=_loss))


def _images(side_px: int = 32) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(2, 4, side_px, side_px).contiguous(memory_format=torch.channels_last)


def _net(name: str) -> nn.Module:
    torch.manual_seed(0)
    options = {} if name.startswith("smp") else {"width": 4}
    model = build_model(name, num_classes=3, in_channels=4, **options)
    return model.to(memory_format=torch.channels_last).train()


def _step(model: nn.Module, images: Tensor, forward: Callable[..., Tensor] = _loss) -> list[Tensor]:
    torch.manual_seed(1)
    loss = forward(model, images)
    loss.backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *gradients, *(each.detach().clone() for each in model.buffers())]


def _far(ours: list[Tensor], theirs: list[Tensor]) -> float:
    assert len(ours) == len(theirs)
    pairs = ((a.double(), b.double()) for a, b in zip(ours, theirs, strict=True))
    return max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in pairs)


@pytest.mark.parametrize("builds", [True, False])
def test_a_planned_step_is_plain_where_kernels_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, builds: bool
) -> None:
    monkeypatch.setattr(fused, "_builds", lambda _: builds)
    forward, num_fused = batch_norm._forward, 0

    def counted(*args: Any, **settings: Any) -> Any:
        nonlocal num_fused
        num_fused += 1
        return forward(*args, **settings)

    monkeypatch.setattr(batch_norm, "_forward", counted)
    images = _images()
    batch = Batch(
        images, torch.ones(2, 32, 32, dtype=torch.bool), ClassRasters(torch.zeros(2, 32, 32)), {"loss": 1.0}
    )
    plan = Plan("train", 2, 1, 1, exact=True, why=(), fuse=_fusible(_net("unet"), images))
    num_fused, ours, theirs = 0, _net("unet"), _net("unet")
    for model, each in ((ours, plan), (theirs, replace(plan, fuse=None))):
        compose(model, lambda model, batch: {"loss": _loss(model, batch.images)}, each, bf16=False)(
            batch, last=True
        )
    assert (num_fused > 0) == builds
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    same = all(torch.equal(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None)
    assert same or builds


@pytest.mark.parametrize("name", ["unet", "wider_resnet38", "smp:Unet/resnet18"])
def test_a_fused_step_is_the_plain_step(name: str) -> None:
    plain, fused = _net(name), _net(name)
    images = _images(64)
    fuse = _fusible(plain, images)
    with fused_layers(fused, fuse)():
        ours = _step(fused, images)
    assert _far(ours, _step(plain, images)) < 1e-4
    assert not any("forward" in vars(module) for module in fused.modules())


def test_norms_of_a_unet_take_their_relu_along_and_pools_are_found() -> None:
    fuse = _fusible(_net("unet"), _images())
    assert len(fuse.norms_with_relu) == 18
    assert fuse.norms == ()
    assert fuse.pools == ("pool",)
    assert fuse.joins == tuple(f"merge.{place}" for place in range(4))


def test_fused_layers_keep_less_and_are_one_operation_each() -> None:
    model, images = _net("unet"), _images()
    fuse = _fusible(model, images)
    shape = tuple(images.shape)
    plain = trace_step(model, shape, loss=_loss)
    fused = trace_step(model, shape, loss=_loss, around=lambda twin: fused_layers(twin, fuse)())
    kinds = [op.kind for op in fused.ops]
    assert kinds.count("fused_norm") == kinds.count("fused_norm_backward") == 18
    assert kinds.count("fused_pool") == kinds.count("fused_pool_backward") == 4
    assert "relu_" not in kinds
    assert StepCost(fused).peak_bytes() < StepCost(plain).peak_bytes()


@pytest.mark.parametrize("name", ["unet", "wider_resnet38"])
def test_what_is_made_again_behind_fused_layers_has_the_same_bits(name: str) -> None:
    plain, ours, images = _net(name), _net(name), _images()
    fuse = _fusible(plain, images)
    facts = trace_step(
        plain, tuple(images.shape), loss=_loss, device="cpu", around=lambda twin: fused_layers(twin, fuse)()
    )
    chosen, gone, needed = set(), set[int](), set[int]()
    for recipe in find_recipes(StepCost(facts), lambda _: 1.0):
        cheap = not any("conv" in op.kind for op in recipe.ops)
        if cheap and recipe.storage not in needed and recipe.leaves.isdisjoint(gone):
            chosen |= set(recipe.keys)
            gone.add(recipe.storage)
            needed |= recipe.leaves
    with fused_layers(plain, fuse)():
        first = _step(plain, images)
        plain.zero_grad()
        second = _step(plain, images)
    with fused_layers(ours, fuse)(), SavedTensors(ours, frozenset(chosen)) as saved:

        def forward(model: nn.Module, images: Tensor) -> Tensor:
            with saved.forward():
                return _loss(model, images)

        for theirs in (first, second):  # watched, then read from the graph
            ours.zero_grad()
            found = _step(ours, images, forward)
            assert all(torch.equal(a, b) for a, b in zip(found, theirs, strict=True))
            assert saved.stats is not None
            assert saved.stats.unmet == saved.stats.refused == frozenset()
            assert saved.stats.num_recomputed == len(chosen) > 10


def test_blocks_that_are_run_again_find_the_fused_layers() -> None:
    plain, ours, images = _net("unet"), _net("unet"), _images()
    fuse = _fusible(plain, images)
    with fused_layers(plain, fuse)():
        theirs = _step(plain, images)

    def forward(model: nn.Module, images: Tensor) -> Tensor:
        with checkpointed(model, ("encoder.0", "decoder.3")):
            return _loss(model, images)

    with fused_layers(ours, fuse)():
        found = _step(ours, images, forward)
    assert all(torch.equal(a, b) for a, b in zip(found, theirs, strict=True))


@pytest.mark.parametrize("weights", [None, (0.5, 3.0, 7.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_keeps_its_scores_alone(dtype: torch.dtype, weights: tuple[float, ...] | None) -> None:
    torch.manual_seed(0)
    scores = (3 * torch.randn(2, 3, 8, 8)).to(dtype).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(3, (2, 8, 8), dtype=torch.uint8)
    labels[0, :3] = IGNORE
    loss = cross_entropy(weights)
    found = []
    kept: list[int] = []
    for block in (nullcontext, fused_layers(nn.Identity(), Fuse())):
        given = scores.clone().requires_grad_()
        kept.clear()
        with block(), torch.autograd.graph.saved_tensors_hooks(_noting(kept), lambda each: each):
            total = loss.sum(given, labels)
        total.backward()
        assert given.grad is not None
        found.append([total.detach(), given.grad])
    assert _far(found[1], found[0]) < (1e-6 if dtype is torch.float32 else 1e-2)
    assert sum(kept) == scores.nbytes + labels.nbytes


def _noting(kept: list[int]) -> Callable[[Tensor], Tensor]:
    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    return note


class _Branching(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=kind == "in place")

    def forward(self, images: Tensor) -> Tensor:
        y = self.norm(images)
        if self.kind == "function":
            return F.relu(y)
        z: Tensor = self.relu(y)
        return z + y if self.kind != "module" else z * 2


@pytest.mark.parametrize(
    ("kind", "taken"), [("module", True), ("in place", True), ("function", False), ("also used", False)]
)
def test_a_relu_is_taken_along_only_if_nobody_else_sees_the_norm(kind: str, taken: bool) -> None:
    plain = _Branching(kind).to(memory_format=torch.channels_last)
    images = _images(8).requires_grad_()
    fuse = _fusible(plain, images)
    assert (fuse.norms_with_relu, fuse.norms) == ((("norm",), ()) if taken else ((), ("norm",)))
    fused = copy.deepcopy(plain)
    with fused_layers(fused, fuse)():
        ours = _step(fused, images)
    assert _far(ours, _step(plain, images)) < 1e-6


@pytest.mark.parametrize(
    ("layer", "kind", "names"),
    [
        (nn.Sequential(nn.BatchNorm2d(32)), "norms_with_relu", ("input",)),
        (nn.Sequential(nn.BatchNorm2d(32)), "norms", ("input",)),
        (nn.Sequential(nn.MaxPool2d(2)), "pools", ("input",)),
        (nn.Sequential(nn.Conv2d(32, 4, (3, 1), padding=(16, 0), dilation=(16, 1))), "columns", ("input",)),
        (nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear")), "enlargings", ("input",)),
        (nn.Sequential(Resized(align_corners=True)), "enlargings", ("x", "size")),
        (nn.Sequential(Resized(align_corners=True)), "enlargings", ("size", "x")),
        (nn.Sequential(JoinedConv2d(64, 4, 3, padding=1)), "joins", ("skip", "up")),
    ],
)
def test_layers_are_called_by_the_names_of_their_arguments(
    layer: nn.Sequential, kind: str, names: tuple[str, ...]
) -> None:
    layer = layer.to(memory_format=torch.channels_last)
    images = torch.randn(2, 32, 16, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    named = {name: (20, 12) if name == "size" else images for name in names}
    plain = layer[0](**named)
    with fused_layers(layer, Fuse(**{kind: ("0",)}))():
        made = layer[0](**named)
    assert type(made.grad_fn) is not type(plain.grad_fn)
    torch.testing.assert_close(made, plain.relu() if kind == "norms_with_relu" else plain)


def test_a_relu_behind_a_norm_is_called_by_name_too() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()).to(memory_format=torch.channels_last)
    with fused_layers(model, Fuse(norms_with_relu=("0",)))():
        made = model[0](_images(8))
        assert model[1](input=made) is made
        assert model[1](input=made + 1) is not made


def test_evaluation_and_other_memory_formats_run_as_ever() -> None:
    model, images = _net("unet"), _images()
    fuse = _fusible(model, images)
    with fused_layers(model, fuse)(), torch.no_grad():
        evaluated = model.eval()(images)
    assert torch.equal(evaluated, model(images).detach())
    norm, rows = nn.BatchNorm2d(4), torch.randn(2, 4, 8, 8)
    with fused_layers(norm, Fuse(norms=("",)))():
        assert "FusedNorm" not in type(norm(rows).grad_fn).__name__


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm3d(4),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((2, 3)),
        nn.MaxPool2d(3, dilation=2),
    ],
)
def test_what_the_kernels_cannot_do_is_not_fused(norm: nn.Module) -> None:
    assert not can_be_fused(norm)


def test_a_forward_that_was_given_to_a_layer_stays_its_own() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.ReLU())
    model[3].forward = lambda x: x.clamp_min(0.5)
    assert not can_be_fused(model[3])
    with fused_layers(model, Fuse(norms_with_relu=("0",)))():
        found = model(_images(8))
    assert float(found.detach().min()) == 0.5
    assert [("forward" in vars(module)) for module in model] == [False, False, False, True]


def test_a_part_of_a_gradient_is_copied_in_the_facts_as_on_the_device() -> None:
    class Joining(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.pool, self.conv = nn.BatchNorm2d(4), nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 3, 1)

        def forward(self, images: Tensor) -> Tensor:
            return torch.as_tensor(self.conv(torch.cat((self.norm(images), self.pool(images * 2)), dim=1)))

    plain, images = Joining().to(memory_format=torch.channels_last), _images(8).requires_grad_()
    fuse = _fusible(plain, images)
    assert (fuse.norms, fuse.pools) == (("norm",), ("pool",))
    facts = trace_step(plain, tuple(images.shape), loss=_loss, around=lambda twin: fused_layers(twin, fuse)())
    # the pool's input needs no gradient there
    assert [op.kind for op in facts.ops if op.backward].count("copy_") == 1
    fused = copy.deepcopy(plain)
    with fused_layers(fused, fuse)():
        ours = _step(fused, images)
    assert _far(ours, _step(plain, images)) < 1e-6


def test_what_torch_refuses_is_refused() -> None:
    scores = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    loss, pool = cross_entropy(None), nn.MaxPool2d(4)
    with fused_layers(pool, Fuse(pools=("",)))():
        with pytest.raises((RuntimeError, ValueError), match="4"):
            loss.sum(scores, torch.zeros(2, 4, 4, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="too small"):
            pool(scores[:, :, :2].contiguous(memory_format=torch.channels_last))


def test_a_copy_made_meanwhile_runs_itself() -> None:
    model, images = _net("unet"), _images()
    with fused_layers(model, _fusible(model, images))():
        twin = copy.deepcopy(model)
        before = [each.clone() for each in model.buffers()]
        twin(images)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


_KERNELS = """
import torch
from outsize.strategies.kernels.entropy import kernels as entropy_kernels
from outsize.strategies.kernels.join import kernels as join_kernels
from outsize.strategies.kernels.norm import kernels as norm_kernels
from outsize.strategies.kernels.pool import kernels as pool_kernels, max_pool
norm_kernels._num_processors = lambda device: 2
far = lambda a, b: float((a.float() - b.float()).norm() / (b.float().norm() + 1e-12))
for shape, window in (((2, 5, 9, 7), (2, 2, 0)), ((2, 64, 13, 20), (3, 2, 1)), ((1, 130, 8, 9), (3, 1, 1))):
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2 + 5).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    weight, bias, ours, theirs = (torch.rand(shape[1]) + 0.5 for _ in range(4))
    more = (ours.clone(), theirs.clone())
    rows = norm_kernels.statistics(x, (ours, theirs), 0.1, 1e-5)
    y, *known = torch.ops.aten.native_batch_norm(x, weight, bias, *more, True, 0.1, 1e-5)
    assert max(far(a, b) for a, b in zip((*rows, ours, theirs), (*known, *more))) < 1e-5
    for relu in (False, True):
        masked = torch.where(y <= 0, 0, grad) if relu else grad
        found = norm_kernels.gradients(grad, x, (*rows, weight, bias), relu=relu)
        wanted = torch.ops.aten.native_batch_norm_backward(
            masked, x, weight, None, None, *known, True, 1e-5, (True, True, True))
        assert max(far(a, b) for a, b in zip(found, wanted)) < 1e-4
    more = torch.randn(shape[0], 3, *shape[2:]).contiguous(memory_format=torch.channels_last)
    assert torch.equal(join_kernels.join(x, more), torch.cat((x, more), 1))
    by = torch.randn(more.shape[1])
    assert torch.equal(join_kernels.join(x, more, by), torch.cat((x, more + by[:, None, None]), 1))
    assert far(norm_kernels.sums(x), x.sum((0, 2, 3))) < 1e-5
    x = x.round(decimals=1)  # many maxima that are alike
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, *window)
    size = tuple(y.shape[2:])
    pooled, place = pool_kernels.pool(x, *window, size)
    assert torch.equal(pooled, y) and torch.equal(place, max_pool._forward(x, *window, size)[1])
    grad = torch.randn(y.shape).contiguous(memory_format=torch.channels_last)
    kernel, stride, padding = ([each, each] for each in window)
    wanted = torch.ops.aten.max_pool2d_with_indices_backward(
        grad, x, kernel, stride, padding, [1, 1], False, indices)
    assert far(pool_kernels.gradient(grad, place, *window, x.shape), wanted) < 1e-6
for num_classes, weighted in ((5, False), (19, True)):
    scores = (3 * torch.randn(2, num_classes, 9, 7)).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(num_classes, (2, 9, 7), dtype=torch.uint8)
    labels[:, :2] = 255
    weights = torch.rand(256) + 0.5 if weighted else None
    given = scores.clone().requires_grad_()
    few = None if weights is None else weights[:num_classes]
    wanted = torch.nn.functional.cross_entropy(given, labels.long(), few, ignore_index=255, reduction="sum")
    (0.5 * wanted).backward()
    assert far(entropy_kernels.total(scores, labels, weights), wanted.detach()) < 1e-6
    found = entropy_kernels.gradient(torch.tensor(0.5), scores, labels, weights)
    assert far(found, given.grad) < 1e-6
keys = []
norm_kernels.launch = lambda kernel, key, *_: keys.append((id(kernel), key))
x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
for dtype in (torch.float32, torch.bfloat16):  # a kernel is built for the types of all that it reads and writes
    row = torch.ones(4, dtype=dtype)
    norm_kernels.statistics(x, (row, row), 0.1, 1e-5)
    norm_kernels.gradients(x, x, (*torch.ones(3, 4), row), relu=True)
assert len(keys) == 10 and len(set(keys)) == 9
print("alike")
"""


def test_kernels_do_as_torch_does() -> None:
    triton = pytest.importorskip("triton")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter of this Triton does not go with the NumPy of today")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _KERNELS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "alike\n", done.stderr


@pytest.mark.parametrize(("bias", "most_bytes"), [(True, 2**28), (False, 2**28), (True, 2**10)])
def test_a_convolution_of_two_halves_joins_neither_them_nor_their_gradients(
    bias: bool, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "_MOST_BYTES", most_bytes)  # the last: one sample at a time
    conv = JoinedConv2d(8, 6, 3, padding=1, bias=bias).to(memory_format=torch.channels_last)
    skip, up = (_images(8).requires_grad_() for _ in range(2))
    held: dict[str, int] = {}
    saved: list[int] = []

    def run() -> list[Tensor]:
        for each in (skip, up, *conv.parameters()):
            each.grad = None
        halves = (skip * 1, up * 1)
        for name, half in zip(("skip", "up"), halves, strict=True):
            half.register_hook(lambda grad, name=name: held.update({name: grad.untyped_storage().nbytes()}))
        conv(*halves).relu_().square().sum().backward()
        return [each.grad for each in (skip, up, *conv.parameters()) if each.grad is not None]

    plain = run()
    assert held == {"skip": 2 * skip.nbytes, "up": 2 * up.nbytes}  # parts of one
    with (
        fused_layers(conv, Fuse(joins=("",)))(),
        torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.nbytes), x)[1], lambda x: x),
    ):
        ours = run()
    assert held == {"skip": skip.nbytes, "up": up.nbytes}
    assert max(saved) <= max(skip.nbytes, skip.nbytes // 4 * 6)  # no half with the other
    assert _far(ours, plain) < 1e-6


def test_halves_that_autocast_has_yet_to_cast_are_joined_as_always() -> None:
    conv = JoinedConv2d(8, 6, 3, padding=1).to(memory_format=torch.channels_last)
    skip, up = (_images(8).requires_grad_() for _ in range(2))

    def run() -> list[Tensor]:
        for each in (skip, up, *conv.parameters()):
            each.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            made = conv(skip, up)
        made.float().square().sum().backward()
        return [
            made.detach(),
            *(each.grad for each in (skip, up, *conv.parameters()) if each.grad is not None),
        ]

    plain = run()
    with fused_layers(conv, Fuse(joins=("",)))():
        ours = run()
    assert ours[0].dtype == torch.bfloat16
    assert _far(ours, plain) == 0


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_a_decoder_that_is_run_again_finds_what_it_was_given(norm: str) -> None:
    net = build_model("unet", num_classes=3, in_channels=3, levels=2, width=4, norm=norm)
    plain, images = net.to(memory_format=torch.channels_last), _images(8)[:, :3]
    again = copy.deepcopy(plain)
    plain(images).square().sum().backward()
    with checkpointed(again, ["decoder.0"]):
        again(images).square().sum().backward()
    for one, other in zip(again.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("size", [(5, 7), (1, 4), (3, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("most_bytes", [2**28, 1])
def test_a_join_adds_a_bias_and_finds_its_gradient_without_looking_at_it(
    size: tuple[int, int], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "_MOST_BYTES", most_bytes)
    torch.manual_seed(0)
    given = [torch.randn(2, channels, *size, dtype=torch.float64) for channels in (3, 4)]
    given += [torch.randn(shape, dtype=torch.float64) for shape in ((5, 7, 3, 3), (5,), (4,))]
    skip, up, weight, bias, shift = (each.requires_grad_() for each in given)
    plain = torch.conv2d(torch.cat((skip, up + shift[:, None, None]), 1), weight, bias, padding=1)
    ours = joined.joined_convolution(skip, up, weight, bias, joined.NEIGHBOURS, shift)
    torch.testing.assert_close(ours, plain)
    grad = torch.randn_like(plain)
    found, wanted = (torch.autograd.grad(each, given, grad) for each in (ours, plain))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_the_bias_of_what_comes_up_is_left_to_the_join() -> None:
    model, images = _net("unet"), _images()
    with torch.no_grad():
        for layer in model.up:
            layer.bias.normal_()
    fuse = _fusible(model, images)
    assert fuse.shifts == tuple((f"merge.{place}", f"up.{place}") for place in range(len(model.up)))
    plan = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=(), fuse=fuse)
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))).fuse == fuse
    plain = _step(copy.deepcopy(model), images)
    for shifts in (fuse.shifts, ()):
        fused = copy.deepcopy(model)
        with fused_layers(fused, replace(fuse, shifts=shifts))():
            twin = copy.deepcopy(fused)  # made meanwhile: its joins have to do with its own layers
            ours, theirs = _step(fused, images), _step(twin, images)
        assert _far(ours, plain) < 3e-5  # float32, in another order on each kind of processor
        assert _far(theirs, plain) < 3e-5
    facts = trace_step(
        model, tuple(images.shape), loss=_loss, device="cuda", around=lambda twin: fused_layers(twin, fuse)()
    )
    up = [
        op for op in facts.ops if op.module.startswith("up.") and not op.backward and op.kind == "convolution"
    ]
    assert [op.biased_bytes for op in up] == [0] * len(model.up)
