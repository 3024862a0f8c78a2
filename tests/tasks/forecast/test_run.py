"""A whole run of forecasts: checked, trained, predicted, scored, compared, reported, verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image

from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.commands.results.report import report
from outsize.commands.results.verify import verify
from outsize.commands.train import train
from outsize.data.synthetic import write_rain
from outsize.errors import DataError, JobError, RunError
from outsize.job import load_job
from outsize.progress import Reporter

QUIET = Reporter("quiet")
_JOB = """
task = "forecast"
run = "{run}"
[data]
format = "radar"
root = "rain"
[data.frames]
num_in = 3
num_out = 2
{frames}
[data.split]
val = 0.1
test = 0.1
[model]
{model}
[train]
loss = "rain"
epochs = 1
tile_px = 32
batch = 2
samples_per_epoch = 4
rare_share = 0.5
"""
_UNET = 'name = "unet"\nlevels = 2\nwidth = 4\nzero_head = true'
_CONVLSTM = 'name = "convlstm"\nwidth = 4\nnum_in = 3'


def trained(folder: Path, name: str, model: str, frames: str = "") -> Path:
    job = folder / f"{name}.toml"
    job.write_text(_JOB.format(run=(folder / name).as_posix(), model=model, frames=frames))
    check(job, overrides=[], reporter=QUIET)
    return train(job, overrides=[], device_name="cpu", mode="new", reporter=QUIET).path


def forecast(
    run: Path, *images: Path, out: Path | None = None, more: tuple[str, ...] = ()
) -> list[dict[str, object]]:
    return predict(run, images, out=out, overrides=more, device_name="cpu", reporter=QUIET)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rain")
    write_rain(folder / "rain", 18, 48, num_cells=12)
    return trained(folder, "run", _UNET)


def test_what_is_predicted_is_scored_beside_the_baselines(run: Path) -> None:
    (result,) = forecast(run)
    assert result["exact"]
    with rasterio.open(result["map"]) as file:
        assert file.descriptions == ("2024-06-01T14:40Z (+10 min)", "2024-06-01T14:50Z (+20 min)")
        assert (file.dtypes[0], file.units[0], file.crs.to_epsg()) == ("float32", "mm/h", 32632)
        rain = file.read()
    assert rain.min() >= 0
    with rasterio.open(result["probability"]) as file:
        assert 0 <= file.read().min() <= file.read().max() <= 1
    with Image.open(str(result["film"])) as film:
        assert (film.format, film.n_frames) == ("GIF", 2)
    scores = evaluate(run, split="test", reporter=QUIET)
    assert scores["mean_csi"] == scores["means"]["model"]["csi"][0]
    assert scores["means"]["flow"]["csi"][0] > scores["means"]["persistence"]["csi"][0]
    # two steps from the optical flow that it begins as
    assert scores["mean_csi"] > scores["means"]["persistence"]["csi"][0]
    assert len(scores["methods"]["model"]["fss"]) == 2
    assert scores["reliability"]["threshold"] == 1.0
    assert all((run / path).is_file() for path in scores["pictures"]["sheets"].values())
    report([run], out=None, reporter=QUIET)
    page = (run / "report.html").read_text()
    assert page.count("data:image/gif") == 2
    assert "<script" not in page
    assert "by optical flow" in page


def test_the_next_frames_of_files(run: Path, tmp_path: Path) -> None:
    frames = sorted((run.parent / "rain").glob("*.tif"))
    (result,) = forecast(run, *frames, out=tmp_path / "next")
    assert result["start"] == "2024-06-01T14:50Z"
    (again,) = forecast(run, run.parent / "rain", out=tmp_path / "folder")
    with rasterio.open(str(result["map"])) as one, rasterio.open(str(again["map"])) as other:
        np.testing.assert_array_equal(one.read(), other.read())
    more = ("predict.forecast.probability=false", "predict.forecast.film=false")
    (plain,) = forecast(run, *frames[:-1], out=tmp_path / "plain", more=more)
    assert "probability" not in plain
    with pytest.raises(DataError, match="too few frames"):
        forecast(run, frames[0], out=tmp_path / "few")
    with pytest.raises(DataError, match="gap among the newest"):
        forecast(run, *frames[:5], *frames[6:7], out=tmp_path / "gap")


def test_tiles_equal_the_whole(run: Path) -> None:
    proof = verify(run, overrides=["limits.tile_px=16"], device_name="cpu", reporter=QUIET)
    assert proof["exact"]
    assert all(each["passed"] for each in proof["tiled_equals_whole"].values())


def test_scores_want_forecasts(run: Path) -> None:
    shutil.rmtree(run / "predictions", ignore_errors=True)
    with pytest.raises(RunError, match="outsize predict"):
        evaluate(run, split="test", reporter=QUIET)


@pytest.mark.long
def test_convlstm_without_flow_beside_it(run: Path) -> None:
    other = trained(run.parent, "other", _CONVLSTM, 'flow = "none"')
    for each in (run, other):
        forecast(each)
    result = evaluate_two((run, other), split="test", reporter=QUIET)
    assert len(result["csi"][0]) == 2
    assert 0 <= result["agreement"] <= 1
    scores = evaluate(other, split="test", reporter=QUIET)  # optical flow is found for it
    mine = evaluate(run, split="test", reporter=QUIET)
    assert scores["means"]["flow"] == mine["means"]["flow"]


def test_init_knows_frames(run: Path, tmp_path: Path) -> None:
    job = load_job(init(run.parent / "rain", out=tmp_path / "job.toml", overwrite=False, reporter=QUIET))
    assert (job.task, job.data.format, job.train.loss) == ("forecast", "radar", "rain")
    assert job.data.frames.step_minutes == 10
    # a short training is no worse than the flow that it corrects
    assert (job.data.frames.flow, job.model.options["zero_head"]) == ("dis", True)


def test_other_losses_are_refused_in_a_line(run: Path) -> None:
    with pytest.raises(JobError, match="loss of numbers: rain, plain_rain"):
        train(
            run.parent / "run.toml",
            overrides=['train.loss="dice"', f"run={run.parent / 'dice'}"],
            device_name="cpu",
            mode="new",
            reporter=QUIET,
        )
    assert json.loads((run / "split.json").read_text())["test"][0]["is_numbers"]
