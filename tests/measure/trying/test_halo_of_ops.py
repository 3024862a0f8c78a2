"""Halos of small models: what is local is derived and proved, what looks everywhere is refused by name."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import TraceError
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.trying.probe import probe_halo
from outsize.tiles.halo import Halo, Reach, derive_halo

BANDS = 4


class Net(nn.Module):
    """A forward function and the modules it uses."""

    def __init__(self, function: Callable[..., object], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def conv(kernel: int = 3, **options: object) -> nn.Conv2d:
    return nn.Conv2d(BANDS, BANDS, kernel, **options)  # type: ignore[arg-type]


def halo_of(model: nn.Module) -> Halo:
    return derive_halo(trace(model, example_shape(BANDS)))


def _twice(x: Tensor, mode: str) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode=mode)


def _inplace_on_channels(net: Net, x: Tensor) -> Tensor:
    y = net.c(x)  # type: ignore[operator]
    y[:, :2].relu_()
    return y  # type: ignore[no-any-return]


def _channels_last_block(net: Net, x: Tensor) -> Tensor:
    y = net.norm(net.c(x).permute(0, 2, 3, 1))  # type: ignore[operator]
    return net.mlp(y).permute(0, 3, 1, 2) + x  # type: ignore[operator,no-any-return]


def _crop3(x: Tensor) -> Tensor:
    return F.interpolate(F.interpolate(x, scale_factor=3, mode="nearest"), size=x.shape[-2:], mode="nearest")


def _reflecting(mode: str) -> nn.Module:
    return Net(lambda n, x: n.c(x), c=conv(padding=1, padding_mode=mode))


# model: (above, below, left, right), stride; all without obstacles
LOCAL: dict[str, tuple[nn.Module, tuple[int, int, int, int], int]] = {
    "identity": (Net(lambda _, x: x * 2), (0, 0, 0, 0), 1),
    "kernels differ by axis": (Net(lambda n, x: n.c(x), c=conv((5, 3), padding=(2, 1))), (2, 2, 1, 1), 1),
    "dilated": (Net(lambda n, x: n.c(x), c=conv(3, padding=4, dilation=4)), (4, 4, 4, 4), 1),
    "same padding, even kernel": (Net(lambda n, x: n.c(x), c=conv(4, padding="same")), (1, 2, 1, 2), 1),
    "pad then conv": (Net(lambda n, x: n.c(F.pad(x, (2, 0, 0, 2))), c=conv()), (0, 2, 2, 0), 1),
    "strided and enlarged": (
        Net(
            lambda n, x: n.t(n.c(x)),
            c=conv(3, stride=2, padding=1),
            t=nn.ConvTranspose2d(BANDS, BANDS, 4, stride=2, padding=1),
        ),
        (3, 2, 3, 2),
        2,
    ),
    "transposed with output padding": (
        Net(
            lambda n, x: n.t(F.avg_pool2d(x, 2)),
            t=nn.ConvTranspose2d(BANDS, BANDS, 3, stride=2, padding=1, output_padding=1),
        ),
        (0, 2, 0, 2),
        2,
    ),
    "nearest exact": (Net(lambda _, x: _twice(F.max_pool2d(x, 3, 2, 1), "nearest-exact")), (1, 0, 1, 0), 2),
    "bicubic": (Net(lambda _, x: _twice(F.avg_pool2d(x, 2), "bicubic")), (4, 4, 4, 4), 2),
    "size from a skip": (
        Net(lambda _, x: F.interpolate(F.max_pool2d(x, 4), size=x.shape[-2:], mode="bilinear") + x),
        (4, 4, 4, 4),
        4,
    ),
    "pixel shuffle": (
        Net(lambda n, x: F.pixel_shuffle(n.c(F.pixel_unshuffle(x, 2)), 2), c=nn.Conv2d(16, 16, 3, padding=1)),
        (2, 2, 2, 2),
        2,
    ),
    "focus": (
        Net(
            lambda n, x: _twice(n.c(torch.cat([x[..., ::2, ::2], x[..., 1::2, 1::2]], 1)), "nearest"),
            c=nn.Conv2d(2 * BANDS, BANDS, 3, padding=1),
        ),
        (2, 2, 2, 2),
        2,
    ),
    "rectangle of strides": (
        Net(lambda _, x: F.interpolate(F.max_pool2d(x, (4, 2)), scale_factor=(4.0, 2.0))),
        (0, 0, 0, 0),
        4,
    ),
    "norms over channels and an mlp": (
        Net(
            _channels_last_block, c=conv(7, padding=3), norm=nn.LayerNorm(BANDS), mlp=nn.Linear(BANDS, BANDS)
        ),
        (3, 3, 3, 3),
        1,
    ),
    "activations": (
        Net(
            lambda n, x: n.drop(F.hardswish(F.gelu(F.silu(n.act(F.hardtanh(torch.sigmoid(n.c(x)), -1, 6)))))),
            c=conv(padding=1),
            act=nn.PReLU(BANDS),
            drop=nn.Dropout2d(),
        ),
        (1, 1, 1, 1),
        1,
    ),
    "over channels": (
        Net(lambda _, x: F.normalize(x, dim=1) + x.softmax(1) + x.amax(1, keepdim=True) + x.flip(1)),
        (0, 0, 0, 0),
        1,
    ),
    "moved channels": (
        Net(lambda _, x: torch.cat([*F.channel_shuffle(x, 2).chunk(2, 1), x[:, [1, 0]], x[:, 0, None]], 1)),
        (0, 0, 0, 0),
        1,
    ),
    "uniform constants": (Net(lambda _, x: x * torch.ones_like(x) + torch.zeros(x.shape)), (0, 0, 0, 0), 1),
    "in place on channels": (Net(_inplace_on_channels, c=conv(padding=1)), (1, 1, 1, 1), 1),
    "instance norm with fixed statistics": (
        Net(lambda n, x: n.norm(x), norm=nn.InstanceNorm2d(BANDS, track_running_stats=True)),
        (0, 0, 0, 0),
        1,
    ),
    "another precision and back": (
        Net(lambda n, x: n.c(x).double().float().to(torch.bfloat16).type_as(x), c=conv(padding=1)),
        (1, 1, 1, 1),
        1,
    ),
    "factor three": (Net(lambda _, x: _crop3(x)), (0, 0, 0, 0), 1),
    "reflect": (_reflecting("reflect"), (1, 1, 1, 1), 1),
    "replicate": (_reflecting("replicate"), (1, 1, 1, 1), 1),
    "crop and pad": (Net(lambda _, x: F.pad(x[..., :-2], (0, 2))), (0, 0, 0, 2), 1),
    "negative padding": (Net(lambda _, x: F.pad(F.pad(x, (-1, 0)), (0, 1))), (0, 0, 0, 1), 1),
    "unpooling": (
        Net(lambda _, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
        (0, 0, 0, 0),
        2,
    ),
    "two outputs": (Net(lambda n, x: {"near": x, "far": n.c(x)}, c=conv(5, padding=2)), (2, 2, 2, 2), 1),
}


# a part of a pixel's numbers needs less, or what is cropped is only missing in a window that ends there
NOT_TIGHT = ("in place on channels", "crop and pad", "negative padding")


@pytest.mark.parametrize("name", LOCAL)
def test_local_operations(name: str) -> None:
    model, (above, below, left, right), stride_px = LOCAL[name]
    halo = halo_of(model)
    assert halo.obstacles == ()
    assert (halo.rows, halo.cols, halo.stride_px) == (Reach(above, below), Reach(left, right), stride_px)
    result = probe_halo(model, halo, in_channels=BANDS, core_px=2 * stride_px)
    assert result.sufficient
    assert result.tight or name in NOT_TIGHT


class ResNetLike(nn.Module):
    """A stem and strided blocks as in ResNet-18, a decoder of nearest upsampling with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(BANDS, 4, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.down = nn.ModuleList(nn.Conv2d(4, 4, 3, stride=2, padding=1) for _ in range(2))
        self.shortcut = nn.ModuleList(nn.Conv2d(4, 4, 1, stride=2) for _ in range(2))
        self.up = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [F.relu(self.norm(self.stem(x)))]
        x = F.max_pool2d(skips[0], 3, stride=2, padding=1)
        for down, shortcut in zip(self.down, self.shortcut, strict=True):
            skips.append(x)
            x = F.relu(down(x) + shortcut(x))
        for up in self.up:
            x = F.relu(up(torch.cat([skips.pop(), _twice(x, "nearest")], 1)))
        return self.head(_twice(x, "nearest"))  # type: ignore[no-any-return]


def test_strided_encoder_needs_more_before_than_after() -> None:
    model = ResNetLike()
    halo = halo_of(model)
    assert halo.exact
    assert halo.stride_px == 16
    assert halo.rows == halo.cols
    assert halo.rows.before_px > halo.rows.after_px > 16
    result = probe_halo(model, halo)
    assert result.sufficient
    assert result.tight
    swapped = Reach(halo.rows.after_px, halo.rows.before_px)
    assert not probe_halo(model, Halo(swapped, swapped, 16)).sufficient


def _attention(_: Net, x: Tensor) -> Tensor:
    y = x.flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(y, y, y).transpose(1, 2).reshape(x.shape)


def _inplace_on_rows(_: Net, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 5:9].relu_()
    return y


def _coordinates(_: Net, x: Tensor) -> Tensor:
    return torch.cat([x, torch.linspace(0, 1, x.shape[-1]).expand(len(x), 1, *x.shape[-2:])], 1)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(example_shape(BANDS)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


# model: module and kind of an obstacle that must be named
GLOBAL: dict[str, tuple[nn.Module, str, str]] = {
    "coordinate channels": (Net(_coordinates), "", "cat"),
    "coordinates added": (Net(lambda _, x: x + torch.arange(x.shape[-2])[:, None]), "", "add"),
    "position table": (Positions(), "", "add"),
    "roll": (Net(lambda _, x: x.roll(1, -1)), "", "roll"),
    "roll of all": (Net(lambda _, x: x.roll(1)), "", "roll"),
    "flip": (Net(lambda _, x: x.flip(2)), "", "flip"),
    "transpose": (Net(lambda _, x: x.mT), "", "permute"),
    "align_corners": (
        Net(
            lambda n, x: n.up(F.avg_pool2d(x, 2)),
            up=nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        ),
        "up",
        "upsample",
    ),
    "adaptive pooling": (
        Net(lambda n, x: F.interpolate(n.pool(x), size=x.shape[-2:]), pool=nn.AdaptiveAvgPool2d(8)),
        "pool",
        "adaptive_avg_pool",
    ),
    "squeeze and excite": (
        Net(lambda n, x: x * torch.sigmoid(n.fc(x.mean((2, 3), keepdim=True))), fc=conv(1)),
        "",
        "mean",
    ),
    "global pooling": (
        Net(lambda n, x: x * n.pool(x), pool=nn.AdaptiveMaxPool2d(1)),
        "pool",
        "adaptive_max_pool",
    ),
    "largest value": (Net(lambda _, x: x / x.max()), "", "max"),
    "through a python number": (Net(lambda _, x: x * x.max().item()), "", "max"),
    "in place on rows": (Net(_inplace_on_rows), "", "slice_scatter"),
    "attention": (Net(_attention), "", "attention"),
    "matrix product": (Net(lambda _, x: (x @ x.mT) @ x), "", "matmul"),
    "instance norm": (Net(lambda n, x: n.norm(x), norm=nn.InstanceNorm2d(BANDS)), "norm", "instance_norm"),
    "batch norm without statistics": (
        Net(lambda n, x: n.norm(x), norm=nn.BatchNorm2d(BANDS, track_running_stats=False)),
        "norm",
        "batch_norm",
    ),
    "layer norm over all": (
        Net(lambda n, x: n.norm(x), norm=nn.LayerNorm(list(example_shape(BANDS)[1:]))),
        "norm",
        "layer_norm",
    ),
    "softmax over columns": (Net(lambda _, x: x.softmax(-1)), "", "softmax"),
    "running sum": (Net(lambda _, x: x.cumsum(2)), "", "cumsum"),
    "circular": (_reflecting("circular"), "c", "pad"),
    "halves swapped": (Net(lambda _, x: torch.cat(x.chunk(2, -1)[::-1], -1)), "", "split"),
    "unknown": (Net(lambda _, x: torch.special.bessel_j0(x)), "", "special_bessel_j0"),
    "weights from the picture": (
        Net(lambda _, x: F.conv2d(x, x.mean((0, 2, 3)).reshape(1, 4, 1, 1).expand(4, 4, 1, 1))),
        "",
        "conv",
    ),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_what_looks_everywhere_is_named(name: str) -> None:
    model, module, kind = GLOBAL[name]
    halo = halo_of(model)
    assert not halo.exact
    assert (module, kind) in [(each.module, each.kind) for each in halo.obstacles], halo.obstacles


def test_local_needs_are_counted_beside_obstacles() -> None:
    attention = Net(_attention)
    model = Net(
        lambda n, x: n.b(n.attention(n.a(x))), a=conv(5, padding=2), attention=attention, b=conv(padding=1)
    )
    assert halo_of(model).rows == Reach(3, 3)


def test_operations_without_use_are_no_obstacle() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        _unused = x.mean()
        return x * 2

    assert halo_of(Net(forward)).exact


@pytest.mark.parametrize("function", [lambda _, x: F.max_pool2d(x, 2), lambda _, x: x[..., 1:-1, 1:-1]])
def test_outputs_of_another_size_are_refused(function: Callable[..., object]) -> None:
    with pytest.raises(TraceError, match="768 x 1152"):
        halo_of(Net(function))


def test_output_without_rows_and_columns_is_an_obstacle() -> None:
    halo = halo_of(Net(lambda _, x: x.mean((2, 3))))
    assert "not a map" in halo.obstacles[-1].reason
