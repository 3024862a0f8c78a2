"""Saved tensors that a plan moves to host memory: the step stays the same, and holds what was predicted."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.errors import ModelError
from outsize.measure.memory import LiveBytes
from outsize.measure.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.mix import Mix, mix
from outsize.plan.plan import Plan, Recompute, Swap
from outsize.plan.recompute import find_recipes
from outsize.plan.step import BLOCK_BYTES, StepOp
from outsize.plan.timeline import Link
from outsize.strategies.blocks import checkpointed
from outsize.strategies.compose import Step, Terms, compose

SHAPE = (2, 3, 32, 32)
PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
FAST = Link(1e13, 1e13, 0.0)
SLOW = Link(2e10, 2e10, 0.0)  # making again is cheaper, as far as it goes


def op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12


def _unet() -> nn.Module:
    torch.manual_seed(0)
    return build_model("unet", num_classes=3, in_channels=3, levels=3, width=8).train()


def _residual() -> nn.Module:
    torch.manual_seed(0)
    return build_model("wider_resnet38", num_classes=3, in_channels=3, width=2).train()


MODELS = {"unet": _unet, "residual": _residual}


def _terms(model: nn.Module, batch: Batch) -> Terms:
    return {"loss": F.cross_entropy(model(batch.images), batch.labels.long(), reduction="sum")}


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (2, 32, 32), generator=generator, dtype=torch.uint8)
    images = torch.randn(SHAPE, generator=generator)
    return Batch(images, torch.ones(labels.shape, dtype=torch.bool), labels, {"loss": float(labels.numel())})


def _loss(model: nn.Module, images: Tensor, blocks: tuple[str, ...] = ()) -> Tensor:
    with checkpointed(model, blocks):
        labels = torch.zeros((len(images), *images.shape[2:]), dtype=torch.int64)
        return F.cross_entropy(model(images), labels, reduction="sum")


def _mixed(model: nn.Module, share: float, *, recompute: bool, blocks: tuple[str, ...] = ()) -> Mix:
    facts = trace_step(model, SHAPE, loss=partial(_loss, blocks=blocks), device="cpu", channels_last=False)
    cost = StepCost(facts)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + share * (cost.peak_bytes() - lasting_bytes)
    recipes = find_recipes(cost, op_s) if recompute else []
    return mix(cost, recipes, op_s, SLOW if recompute else FAST, budget_bytes, least_bytes=1024)


def _plan(found: Mix, blocks: tuple[str, ...] = ()) -> Plan:
    keys = tuple(key for recipe in found.recipes for key in recipe.keys)
    return replace(PLAIN, recompute=Recompute(keys, blocks), swap=found.swap)


def _train(model: nn.Module, step: Step, num_steps: int = 3) -> list[Tensor]:
    """Return losses, the last gradients and all buffers."""
    found = []
    for number in range(num_steps):
        torch.manual_seed(number)
        model.zero_grad(set_to_none=True)
        found += step(_batch(), last=True).values()
        with torch.no_grad():
            for each in model.parameters():
                assert each.grad is not None
                each.sub_(1e-3 * each.grad)
    found += [each.grad for each in model.parameters() if each.grad is not None]
    return [*found, *model.buffers()]


@pytest.mark.parametrize("recompute", [False, True], ids=["move", "move-recompute"])
@pytest.mark.parametrize("blocks", [False, True], ids=["", "blocks"])
@pytest.mark.parametrize("net", MODELS)
def test_the_same_bits_as_plain(net: str, blocks: bool, recompute: bool) -> None:
    model = MODELS[net]()
    paths = {"unet": ("encoder.1", "decoder.0"), "residual": ("mod4.0", "mod5.1")}[net] if blocks else ()
    found = _mixed(model, 0.5, recompute=recompute, blocks=paths)
    assert found.swap is not None
    assert bool(found.recipes) == recompute or net == "residual"
    told: list[str] = []
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, _terms, PLAIN, bf16=False))
    ours = _train(model, compose(model, _terms, _plan(found, paths), bf16=False, tell=told.append))
    assert told == []
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recompute", [False, True], ids=["move", "move-recompute"])
def test_the_step_holds_what_was_predicted(recompute: bool) -> None:
    model = _unet()
    found = _mixed(model, 0.6, recompute=recompute)
    step = compose(model, _terms, _plan(found), bf16=False)
    batch = _batch()
    lasting = [*model.parameters(), *model.buffers(), batch.images]
    lasting_bytes = sum(-(-each.nbytes // BLOCK_BYTES) * BLOCK_BYTES for each in lasting)
    for _ in range(3):  # the first is watched, and later ones are the many
        model.zero_grad(set_to_none=True)
        with LiveBytes(BLOCK_BYTES) as live:
            step(batch, last=True)
    peak_bytes = live.peak_bytes + lasting_bytes
    assert peak_bytes == pytest.approx(found.peak_bytes, rel=0.03)


def test_nothing_grows_and_nothing_is_left() -> None:
    model = _unet()
    step = compose(model, _terms, _plan(_mixed(model, 0.6, recompute=True)), bf16=False)
    batch = _batch()
    held = []
    gc.disable()
    try:
        for _ in range(30):
            model.zero_grad(set_to_none=True)
            with LiveBytes() as live:
                step(batch, last=True)
            held.append(live.now_bytes)
    finally:
        gc.enable()
    assert len(set(held[3:])) == 1


def test_a_tensor_that_is_not_saved_is_told(recwarn: pytest.WarningsRecorder) -> None:
    model = _unet()
    found = _mixed(model, 0.7, recompute=False)
    assert found.swap is not None
    nowhere = replace(found.swap.moved[0], key=("nowhere", 0, 0))
    swap = Swap((nowhere, *found.swap.moved[1:]), found.swap.pinned_bytes)
    step = compose(model, _terms, replace(PLAIN, swap=swap), bf16=False)
    _train(model, step, 1)
    assert any("1 are not saved" in str(each.message) for each in recwarn)


def test_a_tensor_changed_after_it_was_saved_is_an_error() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

        def forward(self, images: Tensor) -> Tensor:
            between = self.first(images).sigmoid()
            out: Tensor = self.last(between)
            with torch.no_grad():
                between.add_(1)
            return out

    model = Careless().train()
    facts = trace_step(_unet(), SHAPE, loss=_loss, device="cpu", channels_last=False)
    assert facts.saved
    swap = Swap((replace(_any_move(), key=("last", 0, 0)),), 1 << 20)
    step = compose(model, _terms, replace(PLAIN, swap=swap), bf16=False)
    with pytest.raises(ModelError, match="changed in place"):
        step(_batch(), last=True)


def _any_move() -> object:
    found = _mixed(_unet(), 0.7, recompute=False).swap
    assert found is not None
    return replace(found.moved[0], release=None, fetch=None)
