"""A picture brought to another size, as a module, so that others can find the place."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Resized(nn.Module):
    """Bilinear interpolation to the size that each call names."""

    def __init__(self, *, align_corners: bool) -> None:
        super().__init__()
        self.align_corners = align_corners

    def forward(self, x: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return x with as many rows and columns as `size` says."""
        return F.interpolate(x, size=size, mode="bilinear", align_corners=self.align_corners)

    def extra_repr(self) -> str:
        """Tell what a print of the model shows."""
        return f"align_corners={self.align_corners}"
