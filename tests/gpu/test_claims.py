"""On a GPU: fused layers, recorded steps, memory by pages and compiled blocks are proved, and a wrong one is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from outsize.card import Card
from outsize.data.statistics import BandStatistics
from outsize.job import ClassSpec
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.plan import Compile, Fuse, Plan, Recompute
from outsize.plan.ways.compiled import blocks_to_compile
from outsize.strategies.cudagraph import capture as graphed
from outsize.strategies.kernels.layers import fusible
from outsize.strategies.kernels.norm import batch_norm
from outsize.tasks.segment.terms import loss_on_shapes
from outsize.train.prove.claims import ProvingGround, of_fuse, of_recording, of_step
from outsize.train.prove.steps import prove_step

PLAN = Plan(purpose="train", batch=2, limit_bytes=1, peak_bytes=1, exact=True, why=())


@pytest.fixture(scope="module")
def ground() -> ProvingGround:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=3, width=16, levels=3).eval()
    card = Card(
        task="segment",
        model="unet",
        options={},
        classes=tuple(ClassSpec(name=str(value), value=value) for value in range(3)),
        bands=("", "", ""),
        dtype="uint16",
        statistics=BandStatistics((800.0, 900.0, 700.0), (300.0, 200.0, 250.0)),
    )
    return ProvingGround(model, card, "cross_entropy", 4, torch.device("cuda", torch.cuda.current_device()))


def _facts(ground: ProvingGround) -> Any:
    return trace_step(ground.model, (2, 3, 64, 64), loss=loss_on_shapes("cross_entropy"), device="cuda")


def test_fused_layers_are_proved_by_their_kernels(
    ground: ProvingGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse = fusible(ground.model, _facts(ground))
    assert fuse.norms_with_relu
    claim = of_fuse(replace(PLAN, fuse=fuse), ground)
    print(claim.text())
    assert claim.proved
    forward = batch_norm._forward

    def wrong(*args: Any, **how: Any) -> Any:
        y, mean, invstd = forward(*args, **how)
        return y * 1.01, mean, invstd

    monkeypatch.setattr(batch_norm, "_forward", wrong)
    assert of_fuse(replace(PLAN, fuse=fuse), ground).failed


@pytest.mark.parametrize("paged", [False, True], ids=["graph", "pages"])
@pytest.mark.parametrize("blocks", [(), ("encoder.0",)], ids=["plain", "again"])
def test_a_replayed_step_is_proved(ground: ProvingGround, paged: bool, blocks: tuple[str, ...]) -> None:
    recompute = Recompute(blocks=blocks) if blocks else None
    claims = of_recording(replace(PLAN, graph=True, paged=paged, recompute=recompute, fuse=Fuse()), ground)
    print(*(each.text() for each in claims), sep="\n")
    assert [each.strategy for each in claims] == ["graph"] + ["pages"] * paged
    assert all(each.proved for each in claims)


def test_a_replay_that_does_otherwise_is_found(
    ground: ProvingGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = graphed._Recording.replay

    def wrong(self: Any, batch: Any) -> Any:
        terms = replay(self, batch)
        next(each for each, _ in self.gradients).grad.mul_(1 + 1e-6)
        return terms

    monkeypatch.setattr(graphed._Recording, "replay", wrong)
    (claim,) = of_recording(replace(PLAN, graph=True), ground)
    assert claim.failed


def test_compiled_blocks_are_proved(ground: ProvingGround) -> None:
    plan = replace(PLAN, compile=Compile(blocks_to_compile(_facts(ground))[:1]), fuse=Fuse())
    (claim,) = of_step(plan, prove_step(plan, **ground.given()), ground)
    print(claim.text())
    assert claim.proved
