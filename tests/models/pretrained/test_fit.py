"""Weights that fit in part."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from outsize.errors import ModelError
from outsize.models.pretrained.fit import fit_weights, read_weights


def test_what_fits_is_kept_and_the_rest_is_listed() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 1))
    own = model[1].bias.detach().clone()  # type: ignore[union-attr]
    given = {
        "0.weight": torch.ones(3, 1, 1, 1),
        "0.bias": torch.ones(3),
        "1.weight": torch.ones(5, 3, 1, 1),
        "fc.weight": torch.ones(2),
    }
    fitted = fit_weights(model, given, {"0.weight": lambda value, own: value.expand_as(own)})
    assert fitted.kept == ("0.bias",)
    assert fitted.remade == ("0.weight",)
    assert fitted.dropped == ("1.weight", "fc.weight")
    assert fitted.fresh == ("1.weight", "1.bias")
    assert (model[0].weight == 1).all()
    assert torch.equal(model[1].bias, own)  # type: ignore[arg-type]
    for words in ("1 weights kept", "1 re-made (0.weight)", "2 dropped (1.weight, fc.weight)"):
        assert words in fitted.summary


@pytest.mark.parametrize("wrapping", [None, "state_dict", "model"])
def test_files(tmp_path: Path, wrapping: str | None) -> None:
    tensors = {"module.a.weight": torch.arange(3.0)}
    torch.save({wrapping: tensors, "epoch": 3} if wrapping else tensors, tmp_path / "a.pth")
    read, bands = read_weights(tmp_path / "a.pth")
    assert read.keys() == {"a.weight"}
    assert bands == ()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"card": '{"bands": ["red", "dem"]}'})
    read, bands = read_weights(tmp_path / "a.safetensors")
    assert torch.equal(read["a.weight"], torch.arange(3.0))
    assert bands == ("red", "dem")


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights", pickle.dumps(Path("x"))])
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} cannot be read") as caught:
        read_weights(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "a.pth")
    with pytest.raises(ModelError, match="holds no weights"):
        read_weights(tmp_path / "a.pth")
