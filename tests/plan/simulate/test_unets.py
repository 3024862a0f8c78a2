"""U-Nets of published benchmarks: layers and weights as those who published them count them."""

from __future__ import annotations

import pytest

from outsize.plan.machines import find_machine
from outsize.plan.simulate.unets import FlatUNet
from outsize.plan.times import Clock

P40 = Clock(find_machine("p40").rates, tf32=False, overlaps=True)


@pytest.mark.parametrize(
    ("net", "num_layers", "weights"),
    [
        (FlatUNet(2, 64, 5, 192), 109, 72.3e6),
        (FlatUNet(2, 64, 6, 192), 129, 289.4e6),
        (FlatUNet(2, 64, 7, 192), 149, 1157.6e6),
        (FlatUNet(5, 64, 5, 192), 241, 232.7e6),
        (FlatUNet(6, 72, 5, 192), 285, 362.2e6),
        (FlatUNet(11, 128, 5, 192), 505, 2.2138e9),
        (FlatUNet(48, 160, 5, 192), 2133, 15.8222e9),
    ],
)
def test_layers_and_weights_are_those_published(net: FlatUNet, num_layers: int, weights: float) -> None:
    assert len(net.chain(1, P40)) == num_layers
    assert net.num_weights == pytest.approx(weights, rel=1e-3)


def test_work_and_bytes_grow_with_the_batch_and_weights_do_not() -> None:
    one, four = (FlatUNet(2, 64, 5, 192).chain(batch, P40) for batch in (1, 4))
    assert 3 * one.forward_s(0, 109) < four.forward_s(0, 109) <= 4 * one.forward_s(0, 109)
    assert four.saved_bytes(0, 109) == 4 * one.saved_bytes(0, 109)
    assert four.crossing[50] == 4 * one.crossing[50]
    assert four.state_bytes(0, 109) == one.state_bytes(0, 109) == 2 * one.weights_bytes(0, 109)


def test_every_skip_passes_the_bottom() -> None:
    chain = FlatUNet(2, 64, 5, 192).chain(1, P40)
    bottom = next(number for number, layer in enumerate(chain.layers) if layer.name.endswith("up")) - 1
    skips = sum(4 * 64 * 2**level * (192 // 2**level) ** 2 for level in range(5))
    assert chain.crossing[bottom] == skips + 4 * 1024 * 6**2
