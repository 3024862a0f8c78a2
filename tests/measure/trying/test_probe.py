"""The poison probe sees a halo that is one pixel too short, and one that is too long."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.errors import ModelError
from outsize.measure.trying.probe import probe_halo
from outsize.tiles.halo import Halo, Reach


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 1, (5, 3), padding=(2, 1)))


def test_the_true_halo_is_sufficient_and_tight() -> None:
    probe = probe_halo(_net(), Halo(Reach(3, 3), Reach(2, 2), 1), core_px=4)
    assert probe.sufficient
    assert probe.tight


@pytest.mark.parametrize("side", range(4))
def test_each_side_is_looked_at_on_its_own(side: int) -> None:
    true = [3, 3, 2, 2]
    short, long = list(true), list(true)
    short[side] -= 1
    long[side] += 1
    assert not probe_halo(_net(), Halo(Reach(*short[:2]), Reach(*short[2:]), 1)).sufficient
    probe = probe_halo(_net(), Halo(Reach(*long[:2]), Reach(*long[2:]), 1))
    assert probe.sufficient
    tight = [probe.tight_above, probe.tight_below, probe.tight_left, probe.tight_right]
    assert tight == [number != side for number in range(4)]


def test_a_core_off_the_stride_is_refused() -> None:
    with pytest.raises(ModelError, match="multiple of the stride, 4 px"):
        probe_halo(_net(), Halo(Reach(4, 4), Reach(4, 4), 4), core_px=6)


def test_bands_must_be_told_where_no_convolution_tells_them() -> None:
    halo = Halo(Reach(0, 0), Reach(0, 0), 1)
    with pytest.raises(ModelError, match="give in_channels"):
        probe_halo(nn.ReLU(), halo)
    assert probe_halo(nn.ReLU(), halo, in_channels=3).tight


def test_the_model_is_left_in_its_precision_and_mode() -> None:
    model = _net().train()
    probe_halo(model, Halo(Reach(3, 3), Reach(2, 2), 1))
    assert model.training
    assert next(model.parameters()).dtype == torch.float32
