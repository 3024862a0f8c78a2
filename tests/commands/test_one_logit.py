"""A job of two classes and one logit: it learns, predicts by a threshold, and says which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from tests.commands.tiny_jobs import job_tail

import outsize
from outsize.card import load_checkpoint
from outsize.commands.predict import predict
from outsize.commands.train import train
from outsize.errors import ModelError
from outsize.progress import Reporter

QUIET = Reporter("quiet")
BACKGROUND, THING = 3, 7
DATA = '[data]\ntrain = ["a.tif"]\nval = ["b.tif"]\ntest = ["c.tif"]\n'
MORE = 'samples_per_epoch = 48\nlr = 0.02\nloss = "cross_entropy+dice"\n[predict]\nprobabilities = true\n'


def _write(path: Path, pixels: NDArray[np.uint8]) -> None:
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "height": 64, "width": 96}
    with rasterio.open(path, "w", **profile) as file:
        file.write(pixels, 1)


def _read(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as file:
        return np.asarray(file.read()).squeeze()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes of bright things, and a run that was trained to find them."""
    folder = tmp_path_factory.mktemp("one")
    rng = np.random.default_rng(0)
    for stem in "abc":
        things = np.kron(rng.random((8, 12)) > 0.6, np.ones((8, 8), bool))
        _write(folder / f"{stem}.tif", (things * 100 + rng.integers(20, 80, things.shape)).astype(np.uint8))
        _write(folder / f"{stem}_labels.tif", np.where(things, THING, BACKGROUND).astype(np.uint8))
    tail = job_tail(background=BACKGROUND, thing=THING).replace("width = 4", "width = 4\nlogits = 1")
    job = folder / "job.toml"
    job.write_text(DATA + tail.replace("epochs = 1", "epochs = 2") + MORE)
    overrides = [f"run={(folder / 'run').as_posix()}"]
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=QUIET)
    return folder


def test_the_network_has_one_logit_and_learns(folder: Path, tmp_path: Path) -> None:
    model, card = load_checkpoint(folder / "run/checkpoints/best.safetensors")
    assert [each.name for each in card.classes] == ["background", "thing"]
    assert model.head.out_channels == 1  # type: ignore[union-attr]
    (done,) = predict(
        folder / "run",
        [folder / "c.tif"],
        out=tmp_path / "maps",
        overrides=(),
        device_name="cpu",
        reporter=QUIET,
    )
    found, truth = _read(tmp_path / "maps/c.tif"), _read(folder / "c_labels.tif")
    assert set(np.unique(found)) == {BACKGROUND, THING}
    assert (found == truth).mean() > 0.9
    confidence, shares = (_read(tmp_path / f"maps/c_{each}.tif") for each in ("confidence", "probabilities"))
    assert shares.shape[0] == 2
    assert np.abs(shares.astype(int).sum(0) - 250).max() <= 1
    sure = shares[0] != shares[1]  # in steps of 1/250 some are alike
    assert np.array_equal(found[sure] == THING, (shares[1] > shares[0])[sure])
    assert np.array_equal(confidence, np.where(found == THING, shares[1], shares[0]))
    assert (done["equals"], done["precision"]) == ("model(scene)", "fp32")


def test_the_threshold_of_the_job_and_of_the_call(folder: Path, tmp_path: Path) -> None:
    maps = {}
    for threshold in (0.05, 0.95):
        maps[threshold] = tmp_path / f"{threshold}"
        predict(
            folder / "run",
            [folder / "c.tif"],
            out=maps[threshold],
            overrides=[f"predict.threshold={threshold}"],
            device_name="cpu",
            reporter=QUIET,
        )
        outsize.predict(
            folder / "run",
            folder / "c.tif",
            tmp_path / f"{threshold}.tif",
            device="cpu",
            threshold=threshold,
        )
        assert np.array_equal(_read(maps[threshold] / "c.tif"), _read(tmp_path / f"{threshold}.tif"))
    few, many = ((_read(maps[each] / "c.tif") == THING).sum() for each in (0.95, 0.05))
    assert few < many


def test_a_logit_too_few_is_refused() -> None:
    with pytest.raises(ModelError, match="found logits = 1 and 3 classes, needed 1 logit for 2 classes"):
        outsize.build_model("unet", num_classes=3, in_channels=1, logits=1)
    with pytest.raises(ModelError, match="unknown option of model maskrcnn: found 'logits'"):
        outsize.build_model("maskrcnn", num_classes=2, in_channels=1, logits=1)
    with pytest.raises(ModelError, match=r"found 'classes', .*; set logits = 1 for two classes"):
        outsize.build_model("smp:Unet/resnet18", num_classes=2, in_channels=4, classes=1)
    model = outsize.build_model("smp:Unet/resnet18", num_classes=2, in_channels=4, logits=1)
    assert model.segmentation_head[0].out_channels == 1  # type: ignore[index, union-attr]


def test_a_threshold_of_a_job_with_a_logit_per_class_is_refused(trained_run: Path, scenes: Path) -> None:
    with pytest.raises(ModelError, match=r"threshold 0\.4 does not fit the model"):
        predict(
            trained_run,
            [scenes / "test-2.tif"],
            out=None,
            overrides=["predict.threshold=0.4"],
            device_name="cpu",
            reporter=QUIET,
        )
