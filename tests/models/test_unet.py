"""The U-Net: sizes, parameters, gradients and options."""

from itertools import product

import pytest
import torch

from outsize.errors import ModelError
from outsize.models import MODELS, build_model, unet
from outsize.models.unet import NORMS, UPSAMPLINGS


@pytest.mark.parametrize(("norm", "upsampling"), list(product(NORMS, UPSAMPLINGS)))
def test_any_size_and_bands(norm: str, upsampling: str) -> None:
    model = build_model(
        "unet", num_classes=3, in_channels=5, levels=3, width=4, norm=norm, upsampling=upsampling
    ).eval()
    for height, width in ((16, 24), (13, 31), (1, 1)):
        assert model(torch.randn(2, 5, height, width)).shape == (2, 3, height, width)


def test_padding_is_the_same_as_padding_before() -> None:
    model = build_model("unet", num_classes=2, in_channels=1, levels=3, width=4).eval()
    images = torch.randn(1, 1, 21, 30)
    padded = torch.nn.functional.pad(images, (0, 2, 0, 3))
    assert torch.equal(model(images), model(padded)[..., :21, :30])


@pytest.mark.parametrize("norm", NORMS)
def test_inplace_relu_keeps_gradients_right(norm: str) -> None:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=2, in_channels=2, levels=2, width=4, norm=norm).double()
    images = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (images,), atol=1e-5)


def test_bias_only_where_no_norm_follows_and_sane_start() -> None:
    torch.manual_seed(0)
    plain = build_model("unet", num_classes=6, in_channels=4, norm="none", width=16)
    normed = build_model("unet", num_classes=6, in_channels=4, norm="batch", width=16)
    assert plain.encoder[0][0].bias is not None  # type: ignore[index,union-attr]
    assert normed.encoder[0][0].bias is None  # type: ignore[index,union-attr]
    logits = plain(torch.randn(1, 4, 64, 64))
    assert 0.1 < float(logits.detach().std()) < 10  # neither vanishes nor explodes through 18 layers


def test_stride_and_channels_last() -> None:
    model = build_model("unet", num_classes=2, in_channels=4, levels=4, width=8).eval()
    assert model.stride == 8
    images = torch.randn(1, 4, 32, 32)
    again = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    assert again.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("unnet", {}, ("'unnet'", "did you mean 'unet'")),
        ("zzz", {}, ("'zzz'", "unet")),
        ("unet", {"lvels": 4}, ("'lvels'", "did you mean 'levels'")),
        ("unet", {"levels": 1}, ("levels", "found 1", "at least 2")),
        ("unet", {"levels": "5"}, ("levels", "'5'")),
        ("unet", {"width": 0}, ("width", "found 0")),
        (
            "unet",
            {"levels": 40},
            ("at the bottom", "width 32 doubled 39 times", "8192", "set levels = 9 or fewer"),
        ),
        ("unet", {"levels": 14, "width": 4}, ("width 4 doubled 13 times", "set levels = 12 or fewer")),
        (
            "unet",
            {"levels": 10**12, "width": 1},
            ("doubled 999,999,999,999 times", "set levels = 14 or fewer"),
        ),
        ("unet", {"levels": 2, "width": 5000}, ("width 5000 doubled 1 time,", "set a smaller width")),
        ("unet", {"convs": True}, ("convs", "True")),
        ("unet", {"norm": "layer"}, ("norm", "'layer'", "none, batch, group")),
        ("unet", {"upsampling": "cubic"}, ("upsampling", "'cubic'", "bilinear")),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(name, num_classes=2, in_channels=3, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_the_most_channels_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unet, "_MAX_CHANNELS", 64)
    assert build_model("unet", num_classes=2, in_channels=3, levels=5, width=4).stride == 16
    with pytest.raises(ModelError, match="at the bottom"):
        build_model("unet", num_classes=2, in_channels=3, levels=6, width=4)
    with pytest.raises(ModelError, match="at the bottom"):
        build_model("unet", num_classes=2, in_channels=3, levels=5, width=5)


def test_every_model_builds_with_its_defaults() -> None:
    for name in MODELS:
        # what frames show cannot be told from their number alone
        options = {"num_in": 3} if name == "convlstm" else {}
        build_model(name, num_classes=2, in_channels=3, **options)
    with pytest.raises(ModelError, match="num_classes"):
        build_model("unet", num_classes=0, in_channels=3)
