"""Networks that half of all users take, whole and in passes over at least nine tiles."""

from __future__ import annotations

import pytest
import torch

from outsize.infer.passes import compare
from outsize.models import build_model

NETWORKS = {
    "Unet/efficientnet-b0": {},
    "Unet/resnet18": {"decoder_attention_type": "scse"},
    "DeepLabV3Plus/resnet18": {},
    "PSPNet/resnet18": {},
    "UPerNet/mobilenet_v2": {},
    "FPN/resnet18": {},
    "PAN/resnet18": {},
    "MAnet/resnet18": {},
    "Segformer/resnet18": {},
}
ASKED = ("Unet/efficientnet-b0", "Unet/resnet18", "DeepLabV3Plus/resnet18")


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_in_passes_as_whole(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(f"smp:{name}", num_classes=4, in_channels=3, **NETWORKS[name]).eval()
    for size in ((256, 320), (270, 301)):  # the second is no multiple of the stride
        inputs = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
        # the others in double precision: what one of them adds up whole differs by 2e-5 from one order to another
        precision, tolerance = (torch.float32, 1e-5) if name in ASKED else (torch.float64, 1e-11)
        apart, largest = compare(model.to(precision), inputs.to(precision), 96)
        assert apart <= tolerance * largest
