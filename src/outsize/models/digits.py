"""A small network that gives a picture one class: three convolutions, and a linear layer on all that they find."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.units import Size, format_size, parse_size, sides_of, size_of


class DigitNet(nn.Module):
    """Logits of one picture, of the size that the linear layer was built for; sizes of 28 x 28 px, width 8.

    28 x 28   unit 8 - pool
    14 x 14            unit 16 - pool
     7 x 7                       unit 24 - flatten - linear

    Pooling leaves out what is odd: 30 px are 15, then 7.
    """

    def __init__(
        self, *, in_channels: int, num_classes: int, width: int = 8, picture_px: Size | Sequence[int] = 28
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("num_classes", num_classes), ("width", width)):
            if type(value) is not int or value < 1:
                needed = "a whole number of at least 1"
                raise ModelError(
                    explain(f"digits cannot be built with {name}", repr(value), needed, "correct it")
                )
        try:
            self.picture_px = parse_size(picture_px)
        except ValueError as error:
            found = repr(picture_px)
            raise ModelError(
                explain("digits cannot be built with picture_px", found, str(error), "correct it")
            ) from error
        height, width_px = sides_of(self.picture_px)
        self.features = nn.Sequential(
            _unit(in_channels, width),
            nn.MaxPool2d(2),
            _unit(width, 2 * width),
            nn.MaxPool2d(2),
            _unit(2 * width, 3 * width),
        )
        self.head = nn.Linear((height // 4) * (width_px // 4) * 3 * width, num_classes)

    @property
    def settings(self) -> dict[str, object]:
        """What a checkpoint must tell of how this was built."""
        return {"picture_px": self.picture_px}

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (sample, class)."""
        height, width = sides_of(self.picture_px)
        if tuple(images.shape[-2:]) != (height, width):
            found = format_size(size_of(*images.shape[-2:]))
            remedy = "set model.picture_px and train.tile_px to the same size"
            raise ModelError(
                explain("pictures do not fit the model", found, format_size(self.picture_px), remedy)
            )
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits


def _unit(in_channels: int, channels: int) -> nn.Sequential:
    """Convolve, without a bias, which the norm would take off again."""
    convolution = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
    return nn.Sequential(
        OrderedDict(convolution=convolution, norm=nn.BatchNorm2d(channels), relu=nn.ReLU(inplace=True))
    )
