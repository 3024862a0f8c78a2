"""WiderResNet-38: published parameter counts, sizes of stages, gradients, options."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.wider_resnet import STAGES, WiderResNet38

# of the published trunk for pictures of three bands
PARAMETERS = {
    "mod1": 1_728,
    "mod2": 820_608,
    "mod3": 3_279_616,
    "mod4": 27_274_752,
    "mod5": 26_484_736,
    "mod6": 9_442_304,
    "mod7": 37_758_976,
}


def _tiny() -> WiderResNet38:
    torch.manual_seed(0)
    return WiderResNet38(in_channels=4, num_classes=3, width=2)


def test_parameters_are_those_of_the_published_trunk() -> None:
    with torch.device("meta"):
        model = build_model("wider_resnet38", num_classes=19, in_channels=3)
    counts = {name: sum(p.numel() for p in model.get_submodule(name).parameters()) for name in STAGES}
    assert counts == PARAMETERS
    assert sum(p.numel() for p in model.parameters()) == sum(PARAMETERS.values()) + 4096 * 19 + 19
    trunk = [
        module for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and name != "head"
    ]
    assert all(conv.bias is None for conv in trunk)


def test_stages_have_the_sizes_of_an_output_stride_of_8() -> None:
    with torch.device("meta"):
        model = WiderResNet38(in_channels=3, num_classes=19)
        found = model.features(torch.empty(1, 3, 800, 800))
    shapes = {name: tuple(each.shape[1:]) for name, each in found.items()}
    assert shapes == {
        "mod1": (64, 800, 800),
        "mod2": (128, 400, 400),
        "mod3": (256, 200, 200),
        "mod4": (512, 100, 100),
        "mod5": (1024, 100, 100),
        "mod6": (2048, 100, 100),
        "mod7": (4096, 100, 100),
    }


def test_dilation_is_that_of_3x3_convolutions_and_dropout_that_of_whole_channels() -> None:
    model = _tiny()
    dilations = {
        name: {conv.dilation[0] for conv in model.get_submodule(name).modules() if _is_3x3(conv)}  # type: ignore[union-attr,index,operator]
        for name in STAGES[1:]
    }
    assert dilations == {"mod2": {1}, "mod3": {1}, "mod4": {1}, "mod5": {2}, "mod6": {4}, "mod7": {4}}
    dropouts = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout2d)}
    assert dropouts == {"mod6.0.dropout": 0.3, "mod7.0.dropout": 0.5}


def _is_3x3(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)


@pytest.mark.parametrize(("height", "width"), [(64, 48), (37, 61), (1, 1)])
def test_logits_lie_over_any_picture(height: int, width: int) -> None:
    assert _tiny().eval()(torch.randn(2, 4, height, width)).shape == (2, 3, height, width)


def test_only_the_named_stages_come_back_and_they_are_the_same() -> None:
    model, images = _tiny().eval(), torch.randn(1, 4, 32, 32)
    every = model.features(images)
    assert tuple(every) == STAGES
    some = model.features(images, ("mod3", "mod7"))
    assert tuple(some) == ("mod3", "mod7")
    assert all(torch.equal(some[name], every[name]) for name in some)
    with pytest.raises(ModelError, match=r"mod9.*mod1, mod2"):
        model.features(images, ("mod9",))


def test_relu_in_place_keeps_gradients_right() -> None:
    # dropout off: gradcheck runs forward again and again
    model = WiderResNet38(in_channels=1, num_classes=2, width=1).double().eval()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (images,), atol=1e-5)


def test_it_learns_by_itself() -> None:
    model = _tiny()
    images = torch.randn(2, 4, 16, 16)
    labels = (images[:, 0] > 0).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-3:]) < 0.9 * losses[0]


@pytest.mark.parametrize("name", ["in_channels", "num_classes", "width"])
@pytest.mark.parametrize("value", [0, 1.5, True])
def test_bad_options_are_named(name: str, value: object) -> None:
    options = {"in_channels": 3, "num_classes": 2, name: value}
    with pytest.raises(ModelError, match=name):
        build_model("wider_resnet38", **options)  # type: ignore[arg-type]
