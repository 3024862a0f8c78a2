"""Recomputed instead of kept: the same loss, gradients and buffers, bit by bit, from less memory."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterable

import pytest
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.errors import ModelError
from outsize.measure.memory import LiveBytes
from outsize.models import build_model
from outsize.plan.step import Key
from outsize.strategies.saved import recipes
from outsize.strategies.saved.hooks import SavedStats, SavedTensors, recomputable

_STEPS = 20


class Residual(nn.Module):
    """conv-bn-relu-conv-bn, the input added in place, relu in place."""

    def __init__(self, channels: int, *, shorter: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.side = (
            nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)) if shorter else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.side is None else self.side(x)
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class PreActivation(nn.Module):
    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.activation(self.norm(x)))


class Branches(nn.Module):
    """Dropout, concatenation, padding, pooling and interpolation, with views in between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3)
        self.conv2 = nn.Conv2d(20, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 3, 1)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        a = F.dropout(F.silu(self.conv1(F.pad(x, (1, 1, 1, 1), mode="reflect"))), 0.3)
        b = F.interpolate(F.avg_pool2d(a, 2), scale_factor=2, mode="bicubic")
        c = F.dropout2d(self.conv2(torch.cat((a, b, x), 1)), 0.5)
        d = self.norm(c.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.conv3(F.gelu(torch.cat((d, a[:, :8] * torch.sigmoid(b)), 1)))


def _unet(norm: str = "batch", upsampling: str = "transposed") -> nn.Module:
    return build_model(
        "unet", num_classes=3, in_channels=4, levels=3, width=4, norm=norm, upsampling=upsampling
    )


def _stem(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *blocks, nn.Conv2d(8, 3, 1))


def _shared() -> nn.Module:
    block = Residual(8)
    return _stem(block, nn.MaxPool2d(2), block, nn.Upsample(scale_factor=2), block)


NETS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"unet {norm} {upsampling}": lambda norm=norm, upsampling=upsampling: _unet(norm, upsampling)  # type: ignore[misc]
        for norm in ("none", "batch", "group")
        for upsampling in ("transposed", "nearest", "bilinear")
    },
    "residual": lambda: _stem(Residual(8), Residual(8, shorter=True), Residual(8), Residual(8)),
    "pre-activation": lambda: _stem(
        PreActivation(8, nn.ReLU()), PreActivation(8, nn.SiLU()), PreActivation(8, nn.Hardswish(inplace=True))
    ),
    "branches": Branches,
    "shared": _shared,
}


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    labels = torch.arange(logits[:, 0].numel()).view(logits[:, 0].shape) % 3
    return F.cross_entropy(logits.double(), labels)


def _all_keys(model: nn.Module, images: Tensor) -> frozenset[Key]:
    twin = copy.deepcopy(model)
    return recomputable(twin, lambda: _loss(twin, images))


def _assert_same_training(
    model: nn.Module, images: Tensor, steps: int = _STEPS, context: Callable[[], object] = torch.enable_grad
) -> SavedStats:
    """Train two copies, one plain and one recomputing, and compare everything at each step."""
    plain, ours = model.train(), copy.deepcopy(model).train()
    with context():  # type: ignore[attr-defined]
        keys = _all_keys(model, images)
    optimizers = [torch.optim.SGD(each.parameters(), 0.02, momentum=0.9) for each in (plain, ours)]
    with SavedTensors(ours, keys) as saved:
        for step in range(steps):
            torch.manual_seed(step)
            with context():  # type: ignore[attr-defined]
                expected = _loss(plain, images)
            torch.manual_seed(step)
            with saved.forward(), context():  # type: ignore[attr-defined]
                found = _loss(ours, images)
            expected.backward()
            found.backward()
            assert torch.equal(found, expected)
            for (name, a), b in zip(plain.named_parameters(), ours.parameters(), strict=True):
                assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad), (step, name)
            for (name, a), b in zip(plain.named_buffers(), ours.buffers(), strict=True):
                assert torch.equal(a, b), (step, name)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert saved.stats is not None
    assert saved.stats.num_recomputed == len(keys) > 0
    assert not saved.stats.unmet
    assert not saved.stats.refused
    return saved.stats


def _freed(stats: SavedStats) -> float:
    return 1 - (stats.kept_bytes + stats.held_bytes) / (stats.kept_bytes + stats.recomputed_bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NETS)
def test_training_is_the_same_bit_by_bit(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    model = NETS[name]().to(dtype)
    _assert_same_training(model, torch.randn(2, 4, 16, 16, dtype=dtype))


@pytest.mark.parametrize("architecture", [pytest.param(smp.Unet, marks=pytest.mark.long), smp.DeepLabV3Plus])
def test_networks_of_others(architecture: Callable[..., nn.Module]) -> None:
    torch.manual_seed(3)
    model = architecture("resnet18", encoder_weights=None, classes=3)
    assert _freed(_assert_same_training(model, torch.randn(2, 3, 64, 64))) > 0.4


def test_in_evaluation_mode_and_with_a_frozen_encoder() -> None:
    torch.manual_seed(3)
    model = _unet()
    for parameter in model.encoder.parameters():  # type: ignore[union-attr]
        parameter.requires_grad = False
    images = torch.randn(2, 4, 16, 16)
    _assert_same_training(model, images, steps=3)

    class Evaluated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            self.inner.eval()
            return self.inner(x)

    _assert_same_training(Evaluated(), images, steps=3)


def test_autocast_and_channels_last() -> None:
    torch.manual_seed(3)
    model = _unet().to(memory_format=torch.channels_last)
    images = torch.randn(2, 4, 32, 32).contiguous(memory_format=torch.channels_last)
    stats = _assert_same_training(
        model, images, context=lambda: torch.autocast("cpu", torch.bfloat16, enabled=True)
    )
    assert _freed(stats) > 0.4


@pytest.mark.parametrize(("upsampling", "share"), [("transposed", 0.45), ("nearest", 0.5)])
def test_share_of_the_memory_that_is_freed(upsampling: str, share: float) -> None:
    model = _unet("batch", upsampling)
    images = torch.randn(2, 4, 64, 64)
    stats = _assert_same_training(model, images, steps=1)
    assert _freed(stats) > share
    held_bytes, peak_bytes = {}, {}
    for name, keys in (("plain", frozenset[Key]()), ("ours", _all_keys(model, images))):
        model.zero_grad()
        with SavedTensors(model, keys) as saved, LiveBytes() as live:
            with saved.forward():
                loss = _loss(model, images)
            held_bytes[name] = live.now_bytes
            loss.backward()
            peak_bytes[name] = live.peak_bytes
    assert held_bytes["ours"] < (1 - share) * held_bytes["plain"]
    assert (
        peak_bytes["ours"] < 0.7 * peak_bytes["plain"]
    )  # what backward makes again is not all there at once


def _wide(model: nn.Module) -> Tensor:
    return model(torch.randn(2, 8, 32, 32, requires_grad=True))


def test_recomputed_tensors_are_gone_between_forward_and_backward_and_everything_is_after() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1))
    kept, gone = [], []
    model[1].register_forward_pre_hook(lambda _, args: kept.append(weakref.ref(args[0].untyped_storage())))
    model[2].register_forward_hook(lambda _, __, out: gone.append(weakref.ref(out.untyped_storage())))
    keys = recomputable(model, lambda: _wide(model).sum())
    gc.disable()  # nothing may hang in a cycle, waiting for the collector
    try:
        with SavedTensors(model, keys) as saved:
            with saved.forward():
                loss = _wide(model).sum()
            assert [each() is None for each in gone] == [True, True]
            assert [each() is None for each in kept] == [True, False]
            loss.backward()
            del loss
            assert [each() is None for each in kept] == [True, True]
    finally:
        gc.enable()


class Storages(TorchDispatchMode):
    """Notes all storages that operations make, and which of them are still there."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {id(each.untyped_storage()) for each in known}
        self._made: list[weakref.ref[object]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor):
                self._made.append(weakref.ref(each.untyped_storage()))
        return result

    def num_alive(self, but: Iterable[Tensor]) -> int:
        but_ids = {id(each.untyped_storage()) for each in but} | self._known
        alive = {id(each()) for each in self._made if each() is not None}
        assert len(self._made) > 100
        return len(alive - but_ids)


@pytest.mark.parametrize("fuse", [False, True])
def test_nothing_outlives_its_use_or_waits_for_the_collector(
    fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(recipes.FUSE, "cpu", fuse)
    model = _unet()
    images = torch.randn(2, 4, 16, 16)
    keys = recomputable(
        model, lambda: _loss(model, images)
    )  # what torch does the first time may leave cycles
    owned = (*model.parameters(), *model.buffers(), images)
    gc.collect()
    gc.disable()
    try:
        with Storages(owned) as listing:
            assert recomputable(model, lambda: _loss(model, images)) == keys
        assert listing.num_alive(but=()) == 0
        for chosen in (keys, frozenset(key for key in keys if "." in key[0])):  # all, and without the loss's
            with SavedTensors(model, chosen) as saved:
                for _ in range(3):  # watched, and then not or not everywhere
                    model.zero_grad(set_to_none=True)
                    with Storages(owned) as made:
                        with saved.forward():
                            loss = _loss(model, images)
                        loss.backward()
                    # the loss holds the graph, and the graph must not hold what was saved for it
                    left = [loss, *(each.grad for each in model.parameters() if each.grad is not None)]
                    assert made.num_alive(but=left) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("changed", ["kept", "source"])
def test_changed_in_place_after_being_saved(changed: str) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
    seen: list[Tensor] = []
    model[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    keys = recomputable(model, lambda: _wide(model).sum()) if changed == "source" else frozenset()
    with SavedTensors(model, keys) as saved:
        with saved.forward():
            loss = _wide(model).sum()
        with torch.no_grad():
            seen[-1].add_(1)
        with pytest.raises(ModelError, match=r"module '[123]' .*changed in place.*version 1.*version 0"):
            loss.backward()


def test_overwritten_within_forward_is_kept_instead() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(8, 4, 1), nn.Conv2d(12, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            part = self.conv(x)
            both = torch.cat((part, x), 1)  # worth recomputing: it is larger than `part`
            logits = self.last(both)
            if self.overwrite:
                part.mul_(2)
            return logits + part.sum()

    model = Overwrites()
    images = torch.randn(2, 8, 8, 8)
    model.overwrite = False  # type: ignore[assignment]
    keys = recomputable(model, lambda: model(images))
    assert keys == {("last", 0, 0)}
    model.overwrite = True  # type: ignore[assignment]
    assert not recomputable(model, lambda: model(images))
    with SavedTensors(model, keys) as saved:
        with saved.forward():
            loss = model(images).sum()
        with pytest.raises(ModelError, match="module 'last'"):
            loss.backward()


def test_what_a_plan_names_and_a_step_does_not_meet_is_told() -> None:
    model = _unet()
    images = torch.randn(2, 4, 16, 16)
    elsewhere, convolved = ("encoder.9", 0, 0), ("encoder.0.1", 0, 0)
    with SavedTensors(model, frozenset({elsewhere, convolved})) as saved, saved.forward():
        _loss(model, images)
    assert saved.stats is not None
    assert saved.stats.unmet == {elsewhere}
    assert saved.stats.refused == {convolved}  # the input of a batch norm comes from a convolution
    assert saved.stats.num_recomputed == 0


def test_goes_on_after_an_exception() -> None:
    torch.manual_seed(3)
    model = _unet()
    plain = copy.deepcopy(model)
    images = torch.randn(2, 4, 16, 16)
    keys = _all_keys(model, images)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with SavedTensors(model, keys) as saved:
        handle = model.bottleneck.register_forward_hook(fail)  # type: ignore[union-attr, operator]
        with pytest.raises(RuntimeError, match="out of memory"), saved.forward():
            _loss(model, images)
        handle.remove()
        model.load_state_dict(plain.state_dict())  # batch norm of the encoder had counted the batch
        with saved.forward():
            loss = _loss(model, images)
        loss.backward()
        assert saved.stats is not None
        assert not saved.stats.unmet
    _loss(plain, images).backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_two_forwards_before_their_backwards() -> None:
    torch.manual_seed(3)
    model = _unet("group")
    plain = copy.deepcopy(model)
    images = torch.randn(4, 4, 16, 16)
    with SavedTensors(model, _all_keys(model, images)) as saved:
        losses = []
        for part in images.split(2):
            with saved.forward():
                losses.append(_loss(model, part))
        for loss in losses:
            loss.backward()
    for part in images.split(2):
        _loss(plain, part).backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_can_be_listed_from_shapes_alone() -> None:
    model = _unet()
    ghost = copy.deepcopy(model).to("meta")
    real = recomputable(model, lambda: model(torch.randn(2, 4, 32, 32)).sum())
    assert recomputable(ghost, lambda: ghost(torch.zeros(2, 4, 32, 32, device="meta")).sum()) == real
