"""The networks of any_network.py: how each is made, what its step is given, and what its loss is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_CLASSES = 8


@dataclass(frozen=True)
class Network:
    """A network by name, a batch of it, and the number that backward begins at."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[nn.Module, Any], Tensor]
    example: Callable[[tuple[int, ...], torch.device], Any] = lambda shape, device: torch.randn(
        shape, device=device
    )


def cross_entropy(model: nn.Module, images: Tensor) -> Tensor:
    """Return the cross-entropy of pictures or of their pixels, all of class 0."""
    output = model(images)
    logits = output["out"] if isinstance(output, dict) else output
    labels = torch.zeros(logits.shape[:1] + logits.shape[2:], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.float(), labels)


def detection(model: nn.Module, example: Any) -> Tensor:
    """Return the sum of the losses of torchvision's detectors; they empty what they are given."""
    images, targets = example
    losses: dict[str, Tensor] = model(list(images), [dict(each) for each in targets])
    return torch.stack(list(losses.values())).sum()


def square(model: nn.Module, frames: Tensor) -> Tensor:
    """Return the mean square of what is foretold."""
    found: Tensor = model(frames).float().square().mean()
    return found


def objects(shape: tuple[int, ...], device: torch.device) -> Any:
    """Return pictures with four objects each."""
    num, bands, height, width = shape
    images = tuple(torch.rand(bands, height, width, device=device) for _ in range(num))
    row, col = height // 4, width // 4
    corners = torch.tensor([[col * (n % 2), row * (n // 2)] for n in range(4)], dtype=torch.float32)
    boxes = torch.cat((corners, corners + torch.tensor([col, row]) + 16.0), 1).to(device)
    masks = torch.zeros(4, height, width, dtype=torch.uint8, device=device)
    for mask, (left, top, right, bottom) in zip(masks, boxes.long().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    target = {"boxes": boxes, "labels": torch.ones(4, dtype=torch.long, device=device), "masks": masks}
    return images, tuple(dict(target) for _ in range(num))


class ConvLstm(nn.Module):
    """Foretells the next frame of a few: convolutions, and a memory that goes from frame to frame."""

    def __init__(self, bands: int = 1, width: int = 64) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(bands, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU())
        self.gates = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.out = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, bands, 1))

    def forward(self, frames: Tensor) -> Tensor:
        """Return the frame behind frames (sample, frame, band, row, column)."""
        hidden = memory = frames.new_zeros(len(frames), self.gates.out_channels // 4, *frames.shape[-2:])
        for frame in frames.unbind(1):
            gates = self.gates(torch.cat((self.into(frame), hidden), 1)).chunk(4, 1)
            memory = gates[0].sigmoid() * memory + gates[1].sigmoid() * gates[2].tanh()
            hidden = gates[3].sigmoid() * memory.tanh()
        found: Tensor = self.out(hidden)
        return found


def smp_network(architecture: str, encoder: str) -> nn.Module:
    import segmentation_models_pytorch as smp

    model: nn.Module = getattr(smp, architecture)(encoder, encoder_weights=None, classes=NUM_CLASSES)
    return model


def timm_network(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, **options)


def _deeplab() -> nn.Module:
    from torchvision.models.segmentation import deeplabv3_resnet50  # type: ignore[import-untyped]

    model: nn.Module = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=NUM_CLASSES)
    return model


def _mask_rcnn() -> nn.Module:
    from torchvision.models.detection import maskrcnn_resnet50_fpn_v2  # type: ignore[import-untyped]

    model: nn.Module = maskrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=3)
    return model


NETWORKS = (
    Network("smp Unet/resnet50", lambda: smp_network("Unet", "resnet50"), (8, 3, 704, 704), cross_entropy),
    Network(
        "smp UPerNet/tu-convnext_tiny",
        lambda: smp_network("UPerNet", "tu-convnext_tiny"),
        (8, 3, 704, 704),
        cross_entropy,
    ),
    Network(
        "smp Segformer/mit_b2", lambda: smp_network("Segformer", "mit_b2"), (8, 3, 704, 704), cross_entropy
    ),
    Network("timm convnext_small", lambda: timm_network("convnext_small"), (128, 3, 224, 224), cross_entropy),
    Network(
        "timm vit_base_patch16",
        lambda: timm_network("vit_base_patch16_224"),
        (128, 3, 224, 224),
        cross_entropy,
    ),
    Network(
        "timm swin_tiny",
        lambda: timm_network("swin_tiny_patch4_window7_224"),
        (64, 3, 224, 224),
        cross_entropy,
    ),
    Network("torchvision deeplabv3_resnet50", _deeplab, (8, 3, 512, 512), cross_entropy),
    Network(
        "smp Unet/efficientnet-b4",
        lambda: smp_network("Unet", "efficientnet-b4"),
        (8, 3, 704, 704),
        cross_entropy,
    ),
    Network("timm convnext_base", lambda: timm_network("convnext_base"), (128, 3, 224, 224), cross_entropy),
    Network(
        "timm eva02_small, 518 px",
        lambda: timm_network("eva02_small_patch14_224", img_size=518),
        (16, 3, 518, 518),
        cross_entropy,
    ),
    Network(
        "timm vit_small, 518 px",
        lambda: timm_network("vit_small_patch14_dinov2"),
        (16, 3, 518, 518),
        cross_entropy,
    ),
    Network("torchvision maskrcnn_resnet50_fpn_v2", _mask_rcnn, (4, 3, 704, 704), detection, objects),
    Network("LSTM-convolution", ConvLstm, (4, 8, 1, 256, 256), square),
)
