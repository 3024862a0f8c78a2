"""Starting from another run: what is kept, what is re-made, what is listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from outsize.card import Card, load_checkpoint, save_checkpoint
from outsize.commands.train import train
from outsize.data.statistics import BandStatistics
from outsize.errors import ModelError, RunError
from outsize.job import ClassSpec
from outsize.progress import Reporter
from outsize.train.init import Init, start_from

OPTIONS = {"levels": 2, "width": 4}
CARD = Card(
    task="segment",
    model="unet",
    options=OPTIONS,
    classes=tuple(ClassSpec(name=name, value=value) for value, name in enumerate(("a", "b", "c"))),
    bands=("red", "green", "nir"),
    dtype="uint8",
    statistics=BandStatistics((0.0,) * 3, (1.0,) * 3),
)


def _start(
    tmp_path: Path, card: Card, wanted: Card
) -> tuple[nn.Module, nn.Module, dict[str, torch.Tensor], Init]:
    """Return the earlier model, the new one, what that was before, and the list."""
    torch.manual_seed(0)
    earlier, model = card.build(), wanted.build()
    for each in (earlier, model):
        for name, value in each.named_parameters():
            if name.endswith("bias"):  # zeros would be equal whatever becomes of them
                nn.init.normal_(value)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    save_checkpoint(tmp_path / "best.safetensors", earlier, card)
    init = start_from(
        tmp_path / "best.safetensors",
        model,
        name=wanted.model,
        options=dict(wanted.options),
        bands=wanted.bands,
        classes=wanted.classes,
    )
    return earlier, model, before, init


def _classes(*names: str) -> tuple[ClassSpec, ...]:
    return tuple(ClassSpec(name=name, value=value) for value, name in enumerate(names))


def test_the_same_model_is_kept_whole(tmp_path: Path) -> None:
    earlier, model, _, init = _start(tmp_path, CARD, CARD)
    assert all(torch.equal(value, earlier.state_dict()[name]) for name, value in model.state_dict().items())
    assert set(init.weights.kept) == set(model.state_dict())
    assert not init.weights.remade + init.weights.dropped + init.weights.fresh


def test_classes_go_by_name_also_where_there_are_as_many(tmp_path: Path) -> None:
    wanted = replace(CARD, classes=_classes("c", "new", "a"))
    earlier, model, before, init = _start(tmp_path, CARD, wanted)
    for name in ("head.weight", "head.bias"):
        rows, old = model.state_dict()[name], earlier.state_dict()[name]
        assert torch.equal(rows[0], old[2])
        assert torch.equal(rows[2], old[0])
        assert torch.equal(rows[1], before[name][1])
    assert set(init.weights.remade) == {"head.weight", "head.bias"}
    assert (init.classes_kept, init.classes_new, init.classes_dropped) == (("c", "a"), ("new",), ("b",))


def test_one_logit_is_the_second_class(tmp_path: Path) -> None:
    two = replace(CARD, classes=_classes("rest", "house"))
    one = replace(two, options={**OPTIONS, "logits": 1})
    earlier, model, _, _ = _start(tmp_path, one, one)
    assert torch.equal(earlier.head.weight, model.head.weight)  # type: ignore[union-attr, arg-type]
    earlier, model, _, init = _start(tmp_path, two, one)
    assert torch.equal(earlier.head.weight[1:], model.head.weight)  # type: ignore[index, union-attr, arg-type]
    assert torch.equal(earlier.head.bias[1:], model.head.bias)  # type: ignore[index, union-attr, arg-type]
    assert "classes: kept rest, house" in init.lines


def test_a_new_band_changes_nothing_at_first(tmp_path: Path) -> None:
    wanted = replace(CARD, bands=("B08", "swir", "green", "red"))  # B08 is near infrared
    earlier, model, _, init = _start(tmp_path, CARD, wanted)
    pixels = torch.randn(1, 4, 16, 16, dtype=torch.float64)
    with torch.inference_mode():
        found, answer = model.double().eval()(pixels), earlier.double().eval()(pixels[:, [3, 2, 0]])
    torch.testing.assert_close(found, answer)
    assert (init.bands_kept, init.bands_new) == (("B08", "green", "red"), ("swir",))
    assert init.weights.remade == ("encoder.0.0.weight",)
    assert any("bands: kept B08, green, red; new swir" in line for line in init.lines)


def test_a_band_that_is_gone_is_listed(tmp_path: Path) -> None:
    earlier, model, _, init = _start(tmp_path, CARD, replace(CARD, bands=("red", "nir")))
    kernels = earlier.state_dict()["encoder.0.0.weight"]
    assert torch.equal(model.state_dict()["encoder.0.0.weight"], kernels[:, [0, 2]])
    assert init.bands_dropped == ("green",)


def test_no_band_in_common_leaves_the_first_layer_as_it_was(tmp_path: Path) -> None:
    _, model, before, init = _start(tmp_path, CARD, replace(CARD, bands=("vv", "vh", "dem")))
    assert torch.equal(model.state_dict()["encoder.0.0.weight"], before["encoder.0.0.weight"])
    assert init.weights.dropped == init.weights.fresh == ("encoder.0.0.weight",)
    assert init.bands_kept == ()


def test_other_options_keep_what_fits(tmp_path: Path) -> None:
    _, model, before, init = _start(tmp_path, replace(CARD, options={"levels": 2, "width": 8}), CARD)
    assert init.weights.kept
    assert "head.weight" in init.weights.dropped
    assert torch.equal(model.state_dict()["head.weight"], before["head.weight"])


def test_bands_without_names(tmp_path: Path) -> None:
    unnamed = replace(CARD, bands=("", "", ""))
    assert not _start(tmp_path, unnamed, CARD)[3].weights.remade  # by number, as in prediction
    with pytest.raises(ModelError, match=r"best\.safetensors cannot be matched.*data\.bands"):
        _start(tmp_path, unnamed, replace(CARD, bands=("red", "nir")))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"fits nothing of the model: found unet.*model\.name = 'unet'"):
        _start(tmp_path, CARD, replace(CARD, model="smp:Linknet/resnet18", options={}))


def test_smp_with_other_classes_and_bands(tmp_path: Path) -> None:
    card = replace(CARD, model="smp:Linknet/resnet18", options={})
    wanted = replace(card, classes=_classes("b", "x"), bands=("nir", "red", "green", "blue"))
    earlier, model, _, init = _start(tmp_path, card, wanted)
    old, new = earlier.state_dict(), model.state_dict()
    assert torch.equal(new["encoder.conv1.weight"][:, :3], old["encoder.conv1.weight"][:, [2, 0, 1]])
    assert not new["encoder.conv1.weight"][:, 3].any()
    assert torch.equal(new["segmentation_head.0.weight"][0], old["segmentation_head.0.weight"][1])
    heads = {"segmentation_head.0.weight", "segmentation_head.0.bias"}
    assert set(init.weights.remade) == {"encoder.conv1.weight", *heads}


def test_a_checkpoint_never_fetches_the_weights_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outsize.models.pretrained import smp as room

    def fail(*_: object) -> None:
        raise AssertionError("downloads")

    monkeypatch.setattr(room, "download", fail)
    card = replace(CARD, model="smp:Linknet/resnet18", options={"weights": "imagenet"})
    save_checkpoint(tmp_path / "best.safetensors", card.build(), card)
    assert load_checkpoint(tmp_path / "best.safetensors")[1].options == {"weights": "imagenet"}


@pytest.fixture
def train_with(job_path: Path) -> Callable[..., Path]:
    def run(*overrides: str, mode: str = "new") -> Path:
        short = ("train.epochs=1", "train.samples_per_epoch=2", *overrides)
        return train(job_path, overrides=short, device_name="cpu", mode=mode, reporter=Reporter("quiet")).path

    return run


def test_train_init(trained_run: Path, train_with: Callable[..., Path]) -> None:
    run = train_with(f"train.init={trained_run}", "train.lr=1e-12", "train.weight_decay=0")
    tree = json.loads((run / "init.json").read_text())
    assert tree["source"] == str(trained_run / "checkpoints" / "best.safetensors")
    assert tree["bands_kept"] == ["blue", "green", "red", "nir"]
    assert len(tree["weights"]["kept"]) > 10
    old, new = (load_checkpoint(each / "checkpoints" / "best.safetensors")[0] for each in (trained_run, run))
    for (name, one), (_, other) in zip(old.named_parameters(), new.named_parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name
    train_with(mode="overwrite")
    assert not (run / "init.json").exists()


def test_train_init_of_no_run(tmp_path: Path, train_with: Callable[..., Path]) -> None:
    with pytest.raises(RunError, match=r"nowhere is no run folder"):
        train_with(f"train.init={tmp_path / 'nowhere'}")


DETECTOR = replace(
    CARD,
    task="instances",
    model="maskrcnn",
    options={"backbone": "resnet18", "width": 32, "head_width": 16, "norm": "group"},
)


def test_heads_of_a_detector_are_re_made_class_by_class(tmp_path: Path) -> None:
    wanted = replace(DETECTOR, classes=_classes("new", "b"), bands=("green", "red", "nir"))
    earlier, model, before, init = _start(tmp_path, DETECTOR, wanted)
    mine, theirs = model.state_dict(), earlier.state_dict()
    heads = "roi_heads.box_predictor.cls_score", "roi_heads.mask_predictor.mask_fcn_logits"
    for name in (f"{head}.{kind}" for head in heads for kind in ("weight", "bias")):
        assert torch.equal(mine[name][0], theirs[name][0])  # no object
        assert torch.equal(mine[name][1], before[name][1])
        assert torch.equal(mine[name][2], theirs[name][2])  # "b" was the second before, too
    boxes = "roi_heads.box_predictor.bbox_pred.weight"
    assert torch.equal(mine[boxes][8:], theirs[boxes][8:12])
    assert torch.equal(mine[boxes][4:8], before[boxes][4:8])
    assert (init.classes_kept, init.classes_dropped) == (("b",), ("a", "c"))
    assert torch.equal(mine["backbone.body.conv1.weight"][:, 0], theirs["backbone.body.conv1.weight"][:, 1])
    assert not init.weights.dropped + init.weights.fresh


def test_a_detector_of_the_same_classes_is_kept_whole(tmp_path: Path) -> None:
    _, _, _, init = _start(tmp_path, DETECTOR, DETECTOR)
    assert not init.weights.remade + init.weights.dropped + init.weights.fresh


def test_the_card_of_a_detector_tells_what_the_job_left_to_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "best.safetensors", DETECTOR.build(), DETECTOR)
    _, card = load_checkpoint(tmp_path / "best.safetensors")
    assert card.options["anchor_px"] == [32, 64, 128, 256, 512]
    assert card.options["norm"] == "group"
