"""Checkpoints: weights and card in one file that runs no code."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from outsize.card import Card, load_checkpoint, save_checkpoint, to_device
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, RunError
from outsize.job import ClassSpec
from outsize.train.checkpoint import load_state

CARD = Card(
    task="segment",
    model="unet",
    options={"levels": 2, "width": 4, "norm": "batch"},
    classes=(ClassSpec(name="a", value=3, colour=(1, 2, 3)), ClassSpec(name="b", value=0)),
    bands=("red", ""),
    dtype="uint16",
    statistics=BandStatistics((0.1, 2.0), (1 / 3, 4.0)),
    resolution=(0.5, 0.25),
    trained={"epoch": 3, "best_mean_iou": 0.5},
)


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = CARD.build()
    model(torch.randn(2, 2, 8, 8))  # batch norm has statistics of its own now
    return model


def _same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("card", [CARD, replace(CARD, resolution=None)])
def test_weights_and_card_come_back(tmp_path: Path, card: Card) -> None:
    path, model = tmp_path / "new" / "best.safetensors", _model()
    save_checkpoint(path, model, card)
    loaded, loaded_card = load_checkpoint(path)
    assert _same(loaded, model)
    assert loaded_card == card
    assert {each.name for each in path.parent.iterdir()} == {"best.safetensors", "best.json"}
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["card"]) == json.loads(path.with_suffix(".json").read_text())


def test_parameter_names_are_the_models_own_also_channels_last(tmp_path: Path) -> None:
    path, model = tmp_path / "best.safetensors", to_device(_model(), torch.device("cpu"))
    save_checkpoint(path, model, CARD)
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == set(model.state_dict())
    assert _same(load_checkpoint(path)[0], model)


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_checkpoint(path, _model(), replace(CARD, options={**CARD.options, "width": 8}))
    with pytest.raises(ModelError, match=rf"{path} do not fit: found bottleneck\.\S+ differs"):
        load_checkpoint(path)


def test_weights_of_layers_that_had_other_names_are_refused_with_both(tmp_path: Path) -> None:
    path, model = tmp_path / "best.safetensors", _model()
    save_checkpoint(path, model, CARD)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    earlier = {name.replace("merge.0", "decoder.0.9"): value for name, value in model.state_dict().items()}
    save_file(earlier, path, metadata=header)
    text = rf"{path} are those of other layers: found decoder\.0\.9\.weight \(1 such .* no merge\.0\.weight"
    with pytest.raises(ModelError, match=text):
        load_checkpoint(path)


def test_weights_without_a_card_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match=r"foreign\.safetensors has no card"):
        load_checkpoint(path)


def test_a_card_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_file({"weight": torch.zeros(3)}, path, metadata={"card": json.dumps({"version": 99})})
    with pytest.raises(ModelError, match=r"best\.safetensors is of another version: found card version 99"):
        load_checkpoint(path)


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("through_torch", [False, True])
def test_a_pickle_is_never_executed(tmp_path: Path, through_torch: bool) -> None:
    path, mark = tmp_path / "best.safetensors", tmp_path / "it ran"
    if through_torch:
        torch.save({"weight": _Bomb(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(_Bomb(mark)))
    for load in (load_checkpoint, lambda each: load_state(each, _model())):
        with pytest.raises(ModelError, match=r"best\.safetensors cannot be read"):
            load(path)
    assert not mark.exists()
    if not through_torch:
        pickle.loads(path.read_bytes())
        assert mark.exists()  # the bomb was a real one


def test_a_truncated_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    with pytest.raises(RunError, match=r"best\.safetensors is missing"):
        load_checkpoint(path)
    save_checkpoint(path, _model(), CARD)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"best\.safetensors cannot be read"):
        load_checkpoint(path)


def test_the_card_says_what_else_the_model_sees_and_which_output_answers(tmp_path: Path) -> None:
    options = {"width": 8}
    shaped = replace(CARD, model="gscnn", options=options, maps=("canny",))
    save_checkpoint(tmp_path / "a.safetensors", shaped.build(), replace(shaped, maps=()))
    model, card = load_checkpoint(tmp_path / "a.safetensors")
    assert card == shaped
    assert json.loads((tmp_path / "a.json").read_text())["maps"] == ["canny"]
    staged = replace(CARD, model="erfnet", options=options)
    model = staged.build()
    model.output = "encoder"  # type: ignore[assignment]
    save_checkpoint(tmp_path / "b.safetensors", model, staged)
    again, card = load_checkpoint(tmp_path / "b.safetensors")
    assert again.output == "encoder"
    assert card.options == {"width": 8, "output": "encoder"}


def test_a_card_from_before_there_were_maps_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_checkpoint(path, _model(), CARD)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        card = json.loads(file.metadata()["card"])
    del card["maps"]
    save_file(tensors, path, metadata={"card": json.dumps(card)})
    assert load_checkpoint(path)[1] == CARD


def test_weights_of_five_axes_have_no_channels_last() -> None:
    model = nn.Sequential(nn.Conv3d(1, 1, 3), nn.Conv2d(3, 4, 3))
    before = [each.clone() for each in model.parameters()]
    to_device(model, torch.device("cpu"))
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
