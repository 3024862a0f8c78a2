"""Every decoder of smp with three encoders: tiled exactly, or refused by what looks everywhere."""

from __future__ import annotations

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import nn

from outsize.measure.trying import derive, differing_at, try_tiling

EVERYWHERE = ("adaptive_avg_pool", "mean", "group_norm", "matmul", "upsample")
# decoder: what looks at the whole picture first; None: nothing does
DECODERS = {
    "Unet": None,
    "UnetPlusPlus": None,
    "Linknet": None,
    "MAnet": "matmul",
    "FPN": "group_norm",
    "PSPNet": "adaptive_avg_pool",
    "DeepLabV3": "adaptive_avg_pool",
    "DeepLabV3Plus": "adaptive_avg_pool",
    "PAN": "adaptive_avg_pool",
    "UPerNet": "adaptive_avg_pool",
    "Segformer": "upsample",
    "DPT": "upsample",
}
ENCODERS = ("resnet18", "mobilenet_v2", "tu-convnext_atto")
CASES = [(decoder, encoder) for decoder in DECODERS for encoder in ENCODERS]
CASES = [each for each in CASES if each[0] != "DPT" or each[1].startswith("tu-")]  # it takes no others


@pytest.mark.long
@pytest.mark.parametrize(("decoder", "encoder"), CASES)
def test_right_for_every_decoder(decoder: str, encoder: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = getattr(smp, decoder)(encoder, encoder_weights=None, in_channels=3, classes=2).eval()
    halo = derive(model, 3)
    kinds = [each.kind for each in halo.obstacles]
    if DECODERS[decoder] is None:
        assert kinds == []
        assert halo.stride_px == 32
        assert differing_at(model, [(4, 3, 640, 704), (2, 3, 640, 704), (1, 3, 1984, 2432)], 32) is None
        assert try_tiling(model, halo, 3) == ()  # whole and tiles of a strip that is longer than the halo
    else:
        assert kinds[0] == DECODERS[decoder]
        assert set(kinds) <= set(EVERYWHERE)
        # of some module: a person can find it
        assert all(each.module and each.index >= 0 for each in halo.obstacles)
