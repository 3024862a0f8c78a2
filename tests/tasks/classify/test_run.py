"""A whole run of pictures with one class each: checked, planned, trained, predicted, scored, compared, reported."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.formats.classed.digit_files import draw_classes, draw_idx, write_idx

from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.commands.predict import images_of, predict
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.commands.results.info import info
from outsize.commands.results.report import report
from outsize.commands.train import train
from outsize.data.formats.classed import read_idx
from outsize.errors import JobError, ModelError, OutsizeError, RunError
from outsize.progress import Reporter

QUIET = Reporter("quiet")
_JOB = """
task = "classify"
run = "{run}"
[data]
format = "{format}"
root = "data"
{data}
[model]
name = "digits"
picture_px = 12
[train]
epochs = {epochs}
tile_px = 12
batch = 10
lr = 2e-2
augment = []
{more}
"""
_CATS = 'classes = [{name = "cat", value = 0}, {name = "dog", value = 1}]'


def write_job(folder: Path, format_name: str, data: str = "", epochs: int = 2, more: str = "") -> Path:
    path = folder / "job.toml"
    run = (folder / "run").as_posix()
    path.write_text(_JOB.format(run=run, format=format_name, data=data, epochs=epochs, more=more))
    return path


def fit(job: Path) -> Path:
    return train(job, overrides=[], device_name="cpu", mode="new", reporter=QUIET).path


def found_of(
    run: Path, *images: Path, split: str | None = None, out: Path | None = None
) -> list[dict[str, object]]:
    given = list(images) or (images_of(run, split) if split else [])
    return predict(run, given, out=out, overrides=[], device_name="cpu", reporter=QUIET)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cats")
    draw_classes(folder / "data", num=20)
    job = write_job(folder, "classes", _CATS, epochs=3)
    check(job, overrides=[], reporter=QUIET)
    return fit(job)


def test_what_is_predicted_is_scored(run: Path) -> None:
    (result,) = found_of(run)
    assert (result["num_pictures"], result["exact"]) == (6, True)
    scores = evaluate(run, split="test", reporter=QUIET)
    assert scores["num_pictures"] == 6
    assert scores["accuracy"] == 1  # dark cats, bright dogs
    assert np.sum(scores["confusion"]) == 6
    assert scores["wrong"] is None
    assert Image.open(run / "picture.png").width >= 300
    assert Image.open(run / "predictions/sheet.png").width >= 300
    with (run / "predictions/classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["class"] == Path(row["picture"]).parent.name
        assert float(row["cat"]) + float(row["dog"]) == pytest.approx(1, abs=1e-3)
    facts = info(run, QUIET)
    assert facts["scores, test"] == "accuracy 1.0"
    assert facts["maps"] == "classes.csv"


def test_the_table_grows_and_what_it_lacks_is_not_scored(run: Path, tmp_path: Path) -> None:
    fresh = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(fresh / "predictions", ignore_errors=True)
    found_of(fresh, split="test")
    with pytest.raises(RunError, match=r"classes.csv lacks pictures: found 6 are not there"):
        evaluate(fresh, split="val", reporter=QUIET)
    found_of(fresh, split="val")
    found_of(fresh, split="val")  # again
    assert len((fresh / "predictions/classes.csv").read_text().splitlines()) == 13
    for split in ("test", "val"):
        assert evaluate(fresh, split=split, reporter=QUIET)["num_pictures"] == 6


def test_pictures_of_a_folder_of_any_size(run: Path, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    for number, (shade, size) in enumerate([(20, (30, 50)), (130, (9, 7)), (20, (200, 40))]):
        Image.fromarray(np.full((*size, 3), shade, np.uint8)).save(tmp_path / f"seen/{number}.png")
    out = tmp_path / "out"
    for _ in range(2):
        (result,) = found_of(run, tmp_path / "seen", out=out)
    assert result["classes"] == {"cat": 2, "dog": 1}
    assert {path.name for path in out.iterdir() if path.suffix != ".lock"} == {
        "classes.csv",
        "predict.json",
        "sheet.png",
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other/classes.csv").write_text("mine")
    with pytest.raises(OutsizeError, match="would be written over"):
        found_of(run, tmp_path / "seen", out=tmp_path / "other")


def test_two_runs_are_compared_and_reported(run: Path) -> None:
    found_of(run)
    evaluate(run, split="test", reporter=QUIET)
    told = evaluate_two((run, run), split="test", reporter=QUIET)
    assert (told["agreement"], told["accuracy"]) == (1, [1, 1])
    report([run], out=None, reporter=QUIET)
    page = (run / "report.html").read_text()
    for part in ("Which is taken for which", "pictures right", "best validation accuracy", "data:image/png"):
        assert part in page


def test_idx_files_and_mistakes_that_are_drawn(tmp_path: Path) -> None:
    draw_idx(tmp_path / "data", num=60, num_test=20)
    classes = read_idx(tmp_path / "data/t10k-labels-idx1-ubyte.gz", 1).copy()
    classes[0] = 9  # which nobody could find
    write_idx(tmp_path / "data/t10k-labels-idx1-ubyte.gz", classes)
    run = fit(write_job(tmp_path, "idx", more='class_weights = "median"', epochs=1))
    assert found_of(run)[0]["num_pictures"] == 20
    scores = evaluate(run, split="test", reporter=QUIET)
    assert scores["wrong"]["num"] == 20 - round(scores["accuracy"] * 20)
    assert (run / scores["wrong"]["picture"]).is_file()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert "classes" in kinds
    assert kinds[-1] == "epoch"
    assert found_of(run, split="val")[0]["num_pictures"] == 60  # its scene holds those to learn from, too
    assert evaluate(run, split="val", reporter=QUIET)["num_pictures"] == 9


def test_a_job_is_written_for_a_folder_of_classes(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data", ("cat", "dog", "owl"), num=8)
    job = init(tmp_path / "data", out=tmp_path / "job.toml", overwrite=False, reporter=QUIET)
    run = tmp_path / "run"
    overrides = [f"run={run.as_posix()}", "train.epochs=1", "train.batch=4"]
    check(job, overrides=overrides, reporter=QUIET)
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=QUIET)
    assert found_of(run)[0]["num_pictures"] == 4
    plan = json.loads((run / "predictions/predict.json").read_text())["plan"]
    assert plan["exact"]


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data")
    with pytest.raises(ModelError, match=r"pictures do not fit the model: found 16 px, needed 12 px"):
        train(
            write_job(tmp_path, "classes", _CATS),
            overrides=["train.tile_px=16"],
            device_name="cpu",
            mode="new",
            reporter=QUIET,
        )
    with pytest.raises(JobError, match=r"train.loss is not for pictures with one class: found dice"):
        fit(write_job(tmp_path, "classes", _CATS, more='loss = "dice"'))
    with pytest.raises(ModelError, match=r"the task is classify, but the model is not"):
        train(
            write_job(tmp_path, "classes", _CATS),
            overrides=["model={name='unet'}"],
            device_name="cpu",
            mode="new",
            reporter=QUIET,
        )
    with pytest.raises(JobError, match=r"pictures are not drawn by what is in them"):
        fit(write_job(tmp_path, "classes", _CATS, more="rare_share = 0.5"))


_MNIST = Path(__file__).parents[4] / "shared/data/mnist"


@pytest.mark.realdata
@pytest.mark.skipif(not _MNIST.is_dir(), reason="the real datasets are not here")
def test_real_digits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, num in (("train", 3000), ("t10k", 500)):
        for kind, axes in (("images-idx3", 3), ("labels-idx1", 1)):
            numbers = read_idx(_MNIST / f"{name}-{kind}-ubyte.gz", axes)[:num]
            write_idx(tmp_path / f"data/{name}-{kind}-ubyte", numbers)
    job = write_job(tmp_path, "idx", epochs=2)
    job.write_text(job.read_text().replace("_px = 12", "_px = 28").replace("batch = 10", "batch = 50"))
    run = fit(job)
    found_of(run)
    assert evaluate(run, split="test", reporter=QUIET)["accuracy"] > 0.93
