"""Layers of today's networks: what they keep is foretold to the byte, and what is recomputed has the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.measure.memory import LiveBytes
from outsize.measure.tracing import differs_again
from outsize.plan.cost import StepCost
from outsize.plan.memory import find_recipes
from outsize.plan.search import mix
from outsize.plan.step import BLOCK_BYTES, StepOp
from outsize.planning.own_step import own_step, traced
from outsize.strategies.forward.saving_tensors import waits_of
from outsize.strategies.saved import SavedTensors

_WIDTH, _SIDE = 16, 16
Made = Callable[[], nn.Module]


def _op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12 + op.flops / 1e12


class _LayerNormOfChannels(nn.Module):
    """Channels first, as written out in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.last = nn.Conv2d(_WIDTH, _WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return found


class _ConvNext(nn.Module):
    """Depthwise, LayerNorm, GELU, LayerScale, stochastic depth; and GRN in the middle, where asked for."""

    def __init__(self, *, grn: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(_WIDTH, _WIDTH, 7, padding=3, groups=_WIDTH)
        self.norm = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.into, self.out = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.scale = nn.Parameter(torch.full((_WIDTH,), 0.5))
        self.grn = nn.Parameter(torch.randn(4 * _WIDTH)) if grn else None
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.into(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        if self.grn is not None:
            size = y.norm(p=2, dim=(1, 2), keepdim=True)
            y = torch.addcmul(y, self.grn, y * (size / (size.mean(-1, keepdim=True) + 1e-6)))
        y = (self.scale * self.out(y)).permute(0, 3, 1, 2)
        if self.drop:
            kept = y.new_empty(len(y), 1, 1, 1).bernoulli_(1 - self.drop).div_(1 - self.drop)
            y = y * kept
        return x + y


class _Attention(nn.Module):
    """By torch's own attention, or written out with a bias of relative positions; in shifted windows if asked for."""

    def __init__(self, *, written_out: bool = False, window: int = 0) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj, self.window = nn.Linear(_WIDTH, _WIDTH), window
        side = window or _SIDE
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, 2) * 0.1) if written_out else None
        rows = torch.arange(side)
        places = torch.stack(torch.meshgrid(rows, rows, indexing="ij")).flatten(1)
        far = places[:, :, None] - places[:, None] + side - 1
        self.register_buffer("places", far[0] * (2 * side - 1) + far[1])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x.permute(0, 2, 3, 1))
        num, rows, cols, _ = tokens.shape
        if self.window:
            across = self.window
            tokens = tokens.roll((-across // 2, -across // 2), (1, 2))
            tokens = tokens.view(num, rows // across, across, cols // across, across, _WIDTH)
            tokens = tokens.transpose(2, 3).reshape(-1, across * across, _WIDTH)
        else:
            tokens = tokens.flatten(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        if self.table is not None:
            bias = self.table[self.places.flatten()].view(*self.places.shape, 2).permute(2, 0, 1)
            y = ((q * _WIDTH**-0.5) @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = self.proj(y.transpose(1, 2).flatten(2))
        if self.window:
            y = y.view(num, rows // self.window, cols // self.window, self.window, self.window, _WIDTH)
            y = y.transpose(2, 3).reshape(num, rows, cols, _WIDTH).roll((1, 1), (1, 2))
        return x + y.reshape(num, rows, cols, _WIDTH).permute(0, 3, 1, 2)


class _SqueezeExcite(nn.Module):
    """An inverted bottleneck of EfficientNet or MobileNetV3."""

    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        wide = 4 * _WIDTH
        self.into = nn.Sequential(nn.Conv2d(_WIDTH, wide, 1, bias=False), nn.BatchNorm2d(wide), act())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), act()
        )
        self.squeeze = nn.Sequential(nn.Conv2d(wide, 8, 1), act(), nn.Conv2d(8, wide, 1))
        self.out = nn.Sequential(nn.Conv2d(wide, _WIDTH, 1, bias=False), nn.BatchNorm2d(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.into(x))
        y = y * self.squeeze(y.mean((2, 3), keepdim=True)).sigmoid()
        found: Tensor = x + self.out(y)
        return found


class _Gated(nn.Module):
    """SwiGLU behind a root-mean-square norm, as in EVA-02."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.RMSNorm(_WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.gate, self.value = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x.permute(0, 2, 3, 1))
        found: Tensor = x + self.last(F.silu(self.gate(tokens)) * self.value(tokens)).permute(0, 3, 1, 2)
        return found


LAYERS: dict[str, tuple[Made, float]] = {  # and the share of its saved bytes that is recomputed at least
    "layer norm of channels": (_LayerNormOfChannels, 0.5),
    "convnext": (_ConvNext, 0.8),
    "convnext, stochastic depth": (lambda: _ConvNext(drop=0.4), 0.8),
    "convnext, GRN": (lambda: _ConvNext(grn=True), 0.5),
    "attention": (_Attention, 0.5),
    "attention written out": (lambda: _Attention(written_out=True), 0.8),
    "attention in windows": (lambda: _Attention(written_out=True, window=4), 0.7),
    "squeeze-excite, SiLU": (lambda: _SqueezeExcite(nn.SiLU), 0.8),
    "squeeze-excite, Hardswish": (lambda: _SqueezeExcite(nn.Hardswish), 0.8),
    "gated": (_Gated, 0.6),
}


def _square(model: nn.Module, images: Tensor) -> Tensor:
    value: Tensor = model(images).float().square().mean()
    return value if images.dtype == torch.float32 else model(images).square().mean()


def _model(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    make = LAYERS[name][0]
    first, last = nn.Conv2d(3, _WIDTH, 3, padding=1), nn.Conv2d(_WIDTH, 3, 1)
    return nn.Sequential(first, make(), make(), last).to(dtype)


IMAGES = torch.randn(2, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", LAYERS)
def test_what_a_layer_keeps_is_foretold_to_the_byte(name: str) -> None:
    model = _model(name)
    cost = StepCost(traced(own_step(model, IMAGES, _square, None, bf16=False)))
    with LiveBytes(BLOCK_BYTES) as live:
        value = _square(model, IMAGES)
        kept_bytes = live.now_bytes
        value.backward()
    (told_bytes,) = {cost.live_bytes()[cost.turn - 1]}
    assert cost.peak_bytes() == live.peak_bytes + cost.lasting_bytes
    assert told_bytes == pytest.approx(kept_bytes + cost.lasting_bytes, abs=8 * BLOCK_BYTES)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bf16", [False, True])
def test_what_is_recomputed_of_a_layer_has_the_same_bits(name: str, bf16: bool) -> None:
    model = _model(name)
    plain = copy.deepcopy(model)
    cost = StepCost(traced(own_step(model, IMAGES, _square, None, bf16=bf16)))
    recipes = find_recipes(cost, _op_s)
    again = mix(cost, recipes, _op_s, None, 0.0, quick=True).as_recompute()
    assert again is not None
    grads = []
    for each in (plain, model):
        torch.manual_seed(4)
        keys, costly = frozenset(again.saved), frozenset(again.costly)
        asked = keys if each is model else frozenset()
        with SavedTensors(each, asked, costly=costly, waits=waits_of(again)) as saved:
            for _ in range(2):  # the second time by what the first has taught
                each.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16), saved.forward():
                    value = _square(each, IMAGES)
                value.backward()
        assert saved.stats is not None
        if each is model:
            assert not saved.stats.refused
            assert not saved.stats.unmet
            freed = saved.stats.recomputed_bytes
            all_bytes = freed + saved.stats.kept_bytes
            assert freed - saved.stats.held_bytes >= LAYERS[name][1] * all_bytes, freed / all_bytes
        grads.append([parameter.grad for parameter in each.parameters()])
    for one, other in zip(*grads, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_attention_that_drops_weights_is_not_made_again() -> None:
    """It would drop others: on a GPU all of it is one operation, which draws by itself."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    x = torch.randn(1, 2, 8, 4, requires_grad=True)
    assert differs_again(flash, (x, x, x, 0.1), {}, on_cuda=True)
    assert differs_again(efficient, (x, x, x, None, True, 0.1), {}, on_cuda=True)
    assert differs_again(efficient, (x, x, x, None, True), {"dropout_p": 0.1}, on_cuda=True)
    assert not differs_again(flash, (x, x, x), {"is_causal": True}, on_cuda=True)
    assert not differs_again(torch.ops.aten.addmm.default, (x, x, x), {}, on_cuda=True)
