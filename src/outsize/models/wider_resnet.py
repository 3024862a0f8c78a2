"""WiderResNet-38 (A2), dilated to an output stride of 8: a wide trunk whose features a shape stream may share."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, cast

from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.models.resized import Resized


class _Stage(NamedTuple):
    """One row of the trunk; channels are multiples of the width."""

    name: str
    num_blocks: int
    channels: tuple[int, ...]  # after each convolution of a block; three of them: a bottleneck
    stride: int = 1  # of the first block
    dilation: int = 1
    dropout: float = 0.0  # of whole channels, before the last convolution
    pooled: bool = False  # a max pooling of stride 2 goes before it


_STAGES = (
    _Stage("mod2", 3, (2, 2), pooled=True),
    _Stage("mod3", 3, (4, 4), pooled=True),
    _Stage("mod4", 6, (8, 8), stride=2),
    _Stage("mod5", 3, (8, 16), dilation=2),
    _Stage("mod6", 1, (8, 16, 32), dilation=4, dropout=0.3),
    _Stage("mod7", 1, (16, 32, 64), dilation=4, dropout=0.5),
)
STAGES = ("mod1", *(stage.name for stage in _STAGES))


class WiderResNet38(nn.Module):
    """The trunk with a 1x1 convolution as its head, so that it segments by itself.

    size 1     mod1: one convolution
    size 1/2   pool - mod2
    size 1/4   pool - mod3
    size 1/8   mod4 (stride 2) - mod5 (dilation 2) - mod6, mod7 (dilation 4) - head - bilinear back to size 1

    Blocks normalise what comes in, not what goes out: mod7 is a plain sum of its blocks, of any scale.
    """

    def __init__(self, *, in_channels: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("num_classes", num_classes), ("width", width)):
            _check_count(name, value)
        self.stride = 8
        self.mod1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        inward = width
        for stage in _STAGES:
            self.add_module(stage.name, _blocks(stage, inward, width))
            inward = stage.channels[-1] * width
        self.head = nn.Conv2d(inward, num_classes, 1)
        self.resize = Resized(align_corners=False)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of the same height and width as `images`."""
        features = self.features(images, ("mod7",))["mod7"]
        logits = self.head(features)
        return cast(Tensor, self.resize(logits, images.shape[-2:]))

    def features(self, images: Tensor, names: Collection[str] = STAGES) -> dict[str, Tensor]:
        """Return what the named stages make of pictures; the others are let go as soon as they are used."""
        unknown = [name for name in names if name not in STAGES]
        if unknown:
            needed = "some of " + ", ".join(STAGES)
            raise ModelError(explain("no such stage of wider_resnet38", unknown, needed, "correct the names"))
        found: dict[str, Tensor] = {}
        x = cast(Tensor, self.mod1(images))
        if "mod1" in names:
            found["mod1"] = x
        for stage in _STAGES:
            x = self.get_submodule(stage.name)(self.pool(x) if stage.pooled else x)
            if stage.name in names:
                found[stage.name] = x
        return found


class _Block(nn.Module):
    """Norm and ReLU before each convolution, and a way past all of them.

    x ---- norm - ReLU -+- conv - norm - ReLU - conv - (+) ->
     `------------------'- 1x1 conv, or x itself -------'
    """

    def __init__(
        self, inward: int, channels: tuple[int, ...], stride: int, dilation: int, dropout: float
    ) -> None:
        super().__init__()
        kernels = (3, 3) if len(channels) == 2 else (1, 3, 1)
        strides = (stride, *[1] * (len(channels) - 1))
        sizes = (inward, *channels)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(
                before,
                after,
                kernel,
                stride=step,
                padding=dilation if kernel == 3 else 0,
                dilation=dilation if kernel == 3 else 1,
                bias=False,
            )
            for before, after, kernel, step in zip(sizes[:-1], sizes[1:], kernels, strides, strict=True)
        )
        # In place is safe: a norm does not keep its output for backward.
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout2d(dropout) if dropout else None
        changes = stride != 1 or inward != channels[-1]
        self.shortcut = nn.Conv2d(inward, channels[-1], 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](x))
        past = x if self.shortcut is None else self.shortcut(y)
        y = self.convs[0](y)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            y = self.relu(norm(y))
            if self.dropout is not None and conv is self.convs[-1]:
                y = self.dropout(y)
            y = conv(y)
        return cast(Tensor, y + past)


def _blocks(stage: _Stage, inward: int, width: int) -> nn.Sequential:
    channels = tuple(multiple * width for multiple in stage.channels)
    return nn.Sequential(
        *(
            _Block(
                channels[-1] if index else inward,
                channels,
                1 if index else stage.stride,
                stage.dilation,
                stage.dropout,
            )
            for index in range(stage.num_blocks)
        )
    )


def _initialise(model: WiderResNet38) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nonlinearity = "relu" if module not in (model.mod1, model.head) else "linear"
            nn.init.kaiming_normal_(module.weight, nonlinearity=nonlinearity)  # type: ignore[arg-type]
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem = f"wider_resnet38 cannot be built with {name}"
        raise ModelError(explain(problem, repr(value), "a whole number of at least 1", f"change {name}"))
