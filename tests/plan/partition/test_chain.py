"""A traced step becomes a chain: its layers in order, what each keeps, and what goes between them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from outsize.measure.tracing.step import trace_step
from outsize.models.unet import UNet
from outsize.plan.machines import find_machine
from outsize.plan.partition import Chain, Terms, chain_of, cut_chain, fold_chain
from outsize.plan.times import Clock


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    return model(images).square().mean()


def _unet_chain(batch: int = 2, device: Literal["cpu", "cuda"] = "cuda") -> Chain:
    model = UNet(in_channels=3, num_classes=2, levels=3, width=8)
    step = trace_step(model, (batch, 3, 64, 64), loss=_loss, optimizer=torch.optim.Adam, device=device)
    return chain_of(step, Clock(find_machine("v100-16").rates, tf32=False, overlaps=True))


def test_layers_of_a_unet_come_in_order_with_both_ways() -> None:
    chain = _unet_chain()
    names = [layer.name for layer in chain.layers]
    assert names[0].startswith("encoder.0.")
    assert names[-1] == "head"
    assert names.index("bottleneck.0") < names.index("up.0") < names.index("merge.0")
    convs = [layer for layer in chain.layers if layer.name in ("encoder.1.0", "bottleneck.0", "head")]
    assert all(layer.backward_s > layer.forward_s > 0 for layer in convs)
    model = UNet(in_channels=3, num_classes=2, levels=3, width=8)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    total = chain.weights_bytes(0, len(chain))
    assert weights <= total <= weights * 2  # each tensor is rounded up
    assert 3.5 * total < chain.state_bytes(0, len(chain)) <= 4.2 * total  # Adam


def test_a_cut_at_the_bottom_carries_every_skip() -> None:
    chain = _unet_chain(batch=2)
    names = [layer.name for layer in chain.layers]
    at = names.index("bottleneck.0")
    skips = 2 * 4 * (8 * 64 * 64 + 16 * 32 * 32)
    before = chain.crossing[at - 1]
    assert skips <= before < 1.6 * skips


def test_a_unet_is_cut_and_folded() -> None:
    chain = _unet_chain()
    terms = Terms(2, 8, link_bytes_per_s=10e9)
    row, fold = cut_chain(chain, terms), fold_chain(chain, terms)
    assert 1 < row.speedup_bound <= 2
    assert 1 < fold.speedup_bound <= 2


def test_an_optimizer_that_goes_weight_by_weight_is_part_of_no_layer() -> None:
    on_gpu, on_host = _unet_chain(), _unet_chain(device="cpu")
    for name in ("weights_bytes", "state_bytes"):
        found = [[getattr(layer, name) for layer in chain.layers] for chain in (on_gpu, on_host)]
        assert found[0] == found[1], name
    assert on_host.backward_s(0, 1) == on_gpu.backward_s(0, 1)


def test_gradients_of_weights_are_a_part_of_backward() -> None:
    chain = _unet_chain()
    weights_s, split_s = chain.later_s(0, len(chain))
    assert weights_s is not None
    assert 0 < weights_s < chain.backward_s(0, len(chain))
    assert split_s > 0
    pools = [number for number, layer in enumerate(chain.layers) if layer.name.startswith("pool")]
    assert chain.later_s(pools[0], pools[0] + 1) == (0.0, 0.0)
