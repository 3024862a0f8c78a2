"""Networks of segmentation-models-pytorch by name: sizes, names of weights, weights to start from, mistakes."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

from outsize.errors import ModelError
from outsize.models import build_model, build_with_notes
from outsize.models.pretrained import fetch
from outsize.models.pretrained import smp as room

ARCHITECTURES = (
    *("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet"),
    *("DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet", "Segformer"),
)
NET = {"num_classes": 3, "in_channels": 4}


def encoder_weights(seed: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(smp.encoders.get_encoder("resnet18", weights=None).state_dict())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_size_under_the_librarys_own_names(architecture: str) -> None:
    model = build_model(f"smp:{architecture}/resnet18", **NET).eval()
    plain = smp.create_model(architecture, "resnet18", encoder_weights=None, in_channels=4, classes=3)
    plain.load_state_dict(model.state_dict())
    plain.eval()
    images = torch.randn(1, 4, 101, 77)
    padded = nn.functional.pad(images, (0, -77 % model.stride, 0, -101 % model.stride))  # type: ignore[operator]
    with torch.inference_mode():
        logits = model(images)
        assert logits.shape == (1, 3, 101, 77)
        torch.testing.assert_close(logits, plain(padded)[..., :101, :77])
        assert torch.equal(model(padded), plain(padded))


def test_nothing_is_padded_in_the_graph_at_multiples() -> None:
    from outsize.measure.graphs.exporting import trace

    model = build_model("smp:Linknet/resnet18", **NET)
    assert not {"pad", "slice"} & {op.kind for op in trace(model, (1, 4, 64, 96)).ops}
    assert {"pad", "slice"} <= {op.kind for op in trace(model, (1, 4, 63, 96)).ops}


def test_a_copy_is_a_model_of_its_own() -> None:
    model = build_model("smp:Linknet/resnet18", **NET).eval()
    other = copy.deepcopy(model)
    nn.init.zeros_(other.segmentation_head[0].weight)  # type: ignore[index,union-attr,arg-type]
    assert isinstance(other, smp.Linknet)
    assert other.stride == 32
    with torch.inference_mode():
        assert not torch.equal(other(torch.ones(1, 4, 40, 40)), model(torch.ones(1, 4, 40, 40)))
        assert copy.deepcopy(model) is not copy.deepcopy(model)
        sent = pickle.loads(pickle.dumps(model))
        assert type(sent) is type(model)
        assert torch.equal(sent(torch.ones(1, 4, 40, 40)), model(torch.ones(1, 4, 40, 40)))


def test_options_and_timm_encoders() -> None:
    model = build_model("smp:Unet/resnet18", **NET, encoder_depth=3, decoder_channels=[16, 8, 4])
    assert model.stride == 8
    assert model.segmentation_head[0].in_channels == 4  # type: ignore[index,union-attr]
    assert build_model("smp:Unet/tu-resnet18", **NET).eval()(torch.randn(1, 4, 33, 40)).shape[2:] == (33, 40)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("smp:Unett/resnet18", {}, ("architecture", "'Unett'", "did you mean 'Unet'")),
        ("smp:linknet/resnet18", {}, ("'linknet'", "did you mean 'Linknet'")),
        ("smp:Unet/resnt18", {}, ("encoder", "'resnt18'", "did you mean 'resnet18'")),
        ("smp:Unet/tu-resnet18d_", {}, ("encoder", "did you mean 'tu-resnet18d'")),
        ("smp:Unet", {}, ("without an encoder", "smp:Unet/resnet18")),
        ("smp:", {}, ("architecture", "''")),
        ("Unet/resnet18", {}, ("did you mean 'smp:Unet/resnet18'",)),
        ("smp:Unet/resnet18", {"decoder_chanels": []}, ("'decoder_chanels'", "'decoder_channels'")),
        ("smp:Unet/resnet18", {"activation": "softmax"}, ("unknown option", "'activation'")),
        ("smp:Unet/resnet18", {"encoder_depth": 3}, ("cannot be built", "decoder_channels")),
        ("smp:Unet/resnet18", {"weights": "imagnet"}, ("'imagnet'", "did you mean 'imagenet'")),
        ("smp:Unet/resnet18", {"weights": "no/such.pth"}, ("'no/such.pth'", "check the path")),
        ("smp:Unet/resnet18", {"weights": "imagenet", "bands": ()}, ("4 unnamed bands", "data.bands")),
        (
            "smp:Unet/resnet18",
            {"weights": "imagenet", "bands": ("red", "", "blue", "nir")},
            ("red, unnamed, blue, nir", "data.bands"),
        ),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(name, **{**NET, "bands": ("red", "green", "blue", "nir"), **options})
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_without_a_network_it_says_so_and_starts_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_why_unreachable", lambda: "no route to host")
    monkeypatch.setattr(fetch, "_is_cached", lambda *_: False)
    torch.manual_seed(1)
    wanted = build_model("smp:Linknet/resnet18", **NET).state_dict()
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match=r"'imagenet' of resnet18 not found \(no route to host\).*at random"):
        model = build_model(
            "smp:Linknet/resnet18", **NET, bands=("red", "green", "blue", "nir"), weights="imagenet"
        )
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def test_pretrained_kernels_go_to_bands_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = encoder_weights()
    monkeypatch.setattr(room, "download", lambda *_: (given, ""))
    model, notes = build_with_notes(
        "smp:Unet/resnet18", **NET, bands=("nir", "B02", "green", "red"), weights="imagenet"
    )
    state, kernels = model.state_dict(), given["conv1.weight"]
    red, green, blue = kernels.unbind(1)
    for index, wanted in enumerate((red / 2, blue, green, red / 2)):
        torch.testing.assert_close(state["encoder.conv1.weight"][:, index], wanted)
    assert torch.equal(state["encoder.layer4.1.conv2.weight"], given["layer4.1.conv2.weight"])
    assert "1 re-made (encoder.conv1.weight)" in notes[0]


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_file_of_an_encoder(tmp_path: Path, kind: str) -> None:
    from safetensors.torch import save_file

    given, path = {**encoder_weights(), "fc.weight": torch.zeros(10, 512)}, tmp_path / f"w.{kind}"
    (save_file if kind == "safetensors" else torch.save)(given, path)
    model, notes = build_with_notes(
        "smp:Linknet/resnet18",
        num_classes=3,
        in_channels=3,
        bands=("blue", "green", "red"),
        weights=str(path),
    )
    state = model.state_dict()
    assert torch.equal(state["encoder.conv1.weight"], given["conv1.weight"].flip(1))
    assert "1 dropped (encoder.fc.weight)" in notes[0]
    assert "decoder.blocks.0" in notes[0]


def test_a_file_of_a_whole_model(tmp_path: Path) -> None:
    path, bands = tmp_path / "w.pth", ("a", "b", "c", "d")
    before = build_model("smp:Linknet/resnet18", **NET)
    torch.save(before.state_dict(), path)
    model, notes = build_with_notes("smp:Linknet/resnet18", **NET, bands=bands, weights=str(path))
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())
    assert any("do not name their bands" in note for note in notes)
    assert any("do not name their classes" in note for note in notes)
    model, notes = build_with_notes(
        "smp:Linknet/resnet18", num_classes=2, in_channels=5, bands=(*bands, "e"), weights=str(path)
    )
    assert any("first layer starts at random" in note for note in notes)
    assert "3 dropped (encoder.conv1.weight, segmentation_head.0.weight" in notes[0]


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match="fits nothing of the model"):
        build_model("smp:Linknet/resnet18", **NET, bands=("a", "b", "c", "d"), weights=str(path))


def test_the_library_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, outsize.models as m; m.build_model('unet', num_classes=2, in_channels=3); "
        "print('segmentation_models_pytorch' in sys.modules, 'timm' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("encoder", "least"), [("resnet18", 11e6), ("resnet101", 42e6)])
def test_deeplab_v3_plus_of_the_ancestors(encoder: str, least: float) -> None:
    with torch.device("meta"):
        model = build_model(f"smp:DeepLabV3Plus/{encoder}", num_classes=11, in_channels=3).eval()
        assert model(torch.empty(1, 3, 361, 473)).shape == (1, 11, 361, 473)
    assert sum(p.numel() for p in model.parameters()) > least


def test_deeplab_says_why_it_cannot_train_on_one_picture() -> None:
    model = build_model("smp:DeepLabV3Plus/resnet18", num_classes=2, in_channels=3)
    with pytest.raises(ModelError, match=r"DeepLabV3Plus .*one picture.*needed at least 2.*train\.batch"):
        model(torch.randn(1, 3, 32, 32))
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 2, 32, 32)
