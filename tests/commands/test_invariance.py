"""What only says how a scene is stored changes no bit of a result: its nodata value, its type, the order of bands."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tests.commands.tiny_jobs import job_tail

from outsize.commands.predict import predict
from outsize.commands.train import train
from outsize.progress import Reporter

BANDS = ("blue", "red", "nir")
SCENES = ("train-0", "train-1", "val", "test")
HEIGHT, WIDTH = 72, 88
JOB = """
seed = 5
[data]
train = ["train-*.tif"]
val = ["val.tif"]
test = ["test.tif"]
{bands}
"""
TAIL = job_tail(dark=3, bright=7) + 'samples_per_epoch = 8\naugment = ["flip", "turn", "scale", "noise"]\n'


@dataclass(frozen=True)
class Stored:
    """How scenes are stored; each scene may have its bands in an order of its own."""

    dtype: str = "uint16"
    nodata: float = 0
    label_nodata: int = 255
    orders: Sequence[tuple[int, ...]] = ((0, 1, 2),) * 4
    bands_in_job: bool = True
    interleave: str = "band"


def _draw(seed: int) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
    """Return pixels that every type can hold and that are no nodata, labels, and where there is no image."""
    rng = np.random.default_rng(seed)
    bright = np.kron(rng.integers(0, 2, (9, 11)), np.ones((8, 8), np.int64))
    pixels = np.stack([20 + 50 * bright, 150 - 30 * bright, 90 + 10 * bright])
    pixels += rng.integers(0, 40, pixels.shape)
    hole = np.zeros((HEIGHT, WIDTH), np.bool_)
    hole[10:40, 30:50], hole[60:, :20] = True, True
    return pixels, np.where(bright, 7, 3).astype(np.uint8), hole


def _store(folder: Path, how: Stored) -> Path:
    profile = {"driver": "GTiff", "height": HEIGHT, "width": WIDTH, "crs": "EPSG:32632"}
    profile["transform"] = rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)
    for number, (name, order) in enumerate(zip(SCENES, how.orders, strict=True)):
        values, labels, hole = _draw(number)
        pixels = values.astype(how.dtype)[list(order)]
        pixels[:, hole] = how.nodata
        form = {"count": 3, "dtype": how.dtype, "nodata": how.nodata, "interleave": how.interleave}
        with rasterio.open(folder / f"{name}.tif", "w", **profile, **form, compress="deflate") as file:
            file.write(pixels)
            file.descriptions = tuple(BANDS[band] for band in order)
        labels[50:58, 60:70] = how.label_nodata
        form = {"count": 1, "dtype": "uint8", "nodata": how.label_nodata}
        with rasterio.open(folder / f"{name}_labels.tif", "w", **profile, **form) as file:
            file.write(labels, 1)
    job = folder / "job.toml"
    job.write_text(JOB.format(bands=f"bands = {json.dumps(BANDS)}" if how.bands_in_job else "") + TAIL)
    return job


def _results(folder: Path, how: Stored) -> dict[str, Any]:
    """Train and predict, and return all numbers that come out."""
    folder.mkdir()
    quiet = Reporter("quiet")
    own = (f'run="{folder}/run"',)
    run = train(_store(folder, how), overrides=own, device_name="cpu", mode="new", reporter=quiet)
    predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    facts = json.loads(run.facts.read_text())
    with rasterio.open(run.predictions / "test.tif") as file:
        classes = file.read(1)
    with rasterio.open(next(run.predictions.glob("test*confidence*.tif"))) as file:
        confidence = file.read(1)
    epoch = json.loads(run.metrics.read_text().splitlines()[-1])
    return {
        "bands": facts["bands"],
        "statistics": facts["statistics"],
        "weights": load_file(run.best),
        "classes": classes,
        "confidence": confidence,
        "epoch": {key: value for key, value in epoch.items() if not key.endswith(("_s", "per_s"))},
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _results(tmp_path_factory.mktemp("plain") / "a", Stored())


CASES = {
    "uint16, 65535": Stored(nodata=65535),
    "int16, -9999": Stored("int16", -9999),
    "float32, NaN": Stored("float32", math.nan),
    "uint8, 255": Stored("uint8", 255),
    "labels, 99": Stored(label_nodata=99),
    "each permuted, pixels": Stored(orders=[(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)], interleave="pixel"),
    "order of the first": Stored(orders=[(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)], bands_in_job=False),
    "permuted, -9999": Stored("int16", -9999, orders=[(2, 1, 0)] * 4),
}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(each, id=name, marks=pytest.mark.long if number % 2 else ())
        for number, (name, each) in enumerate(CASES.items())
    ],
)
def test_how_a_scene_is_stored_changes_nothing(tmp_path: Path, plain: dict[str, Any], how: Stored) -> None:
    found = _results(tmp_path / "a", how)
    for name in ("bands", "statistics", "epoch"):
        assert found[name] == plain[name], name
    assert found["weights"].keys() == plain["weights"].keys()
    for name, weights in plain["weights"].items():
        assert torch.equal(found["weights"][name], weights), name
    np.testing.assert_array_equal(found["classes"], plain["classes"])
    np.testing.assert_array_equal(found["confidence"], plain["confidence"])


def test_the_comparison_can_fail(tmp_path: Path, plain: dict[str, Any]) -> None:
    values, _, hole = _draw(3)
    assert set(np.unique(plain["classes"])) == {3, 7, 255}
    np.testing.assert_array_equal(plain["classes"] == 255, hole)
    # means of the valid pixels alone, counted by hand
    train_values = np.concatenate([_draw(n)[0][:, ~_draw(n)[2]] for n in (0, 1)], axis=1)
    np.testing.assert_allclose(plain["statistics"]["mean"], train_values.mean(axis=1), rtol=1e-12)
    # the same files under other names of bands are another input
    other = _results(tmp_path / "a", Stored(orders=[(2, 0, 1)] * 4, bands_in_job=False))
    assert other["bands"] != plain["bands"]
    assert other["statistics"] != plain["statistics"]
    assert not all(torch.equal(other["weights"][name], each) for name, each in plain["weights"].items())
    assert values.min() > 0
