"""`outsize init`: a job file that loads and checks, and never over another one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.miniatures import draw_camvid_colours, draw_camvid_index, draw_cityscapes, draw_taco

from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.errors import DataError, OutputError
from outsize.job import load_job
from outsize.progress import Reporter

Run = Callable[..., object]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / 'my "photos"'
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(8):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(
            folder / f"images/{number}.png"
        )
        Image.fromarray(rng.integers(0, 3, (40, 50), dtype=np.uint8)).save(folder / f"masks/{number}.png")
    return folder


def test_the_job_it_writes_passes_its_check(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = init(pictures, out=None, overwrite=False, reporter=Reporter())
    assert path == pictures / "job.toml"
    job = load_job(path)
    assert job.data.format == "folders"
    assert [each.name for each in job.data.classes] == ["class_0", "class_1", "class_2"]
    check(path, overrides=(), reporter=Reporter())
    assert list(tmp_path.glob("runs/*/data.json"))


def test_the_job_may_lie_elsewhere(pictures: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "job.toml", tmp_path / "deep" / "job.toml"):
        job = load_job(init(pictures, out=out, overwrite=False, reporter=Reporter()))
        assert len(list(pictures.glob("images/*"))) == 8
        assert Path(job.data.images[0]).parent.resolve() == pictures / "images"


def test_nothing_is_written_over(pictures: Path, run: Run) -> None:
    target = pictures / "job.toml"
    target.write_text("mine")
    run("init", pictures).refused("job.toml exists", "--overwrite")
    assert target.read_text() == "mine"
    done = run("init", pictures, "--overwrite")
    assert done.code == 0
    assert "outsize check" in done.out
    assert target.read_text().startswith("# Written by")
    with pytest.raises(OutputError):
        init(pictures, out=None, overwrite=False, reporter=Reporter())


def test_a_folder_that_is_none_is_refused(tmp_path: Path, run: Run) -> None:
    run("init", tmp_path / "nowhere").refused("nowhere", "no such folder")
    with pytest.raises(DataError, match="no image with labels"):
        init(tmp_path, out=None, overwrite=False, reporter=Reporter())


@pytest.mark.parametrize(
    ("draw", "form", "num_classes"),
    [
        (draw_cityscapes, "cityscapes", 19),
        (draw_camvid_colours, "camvid", 11),
        (draw_camvid_index, "camvid", 11),
        (draw_taco, "coco", 11),
    ],
)
def test_a_dataset_is_recognised_and_its_job_passes_its_check(
    draw: Callable[[Path], object],
    form: str,
    num_classes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    draw(tmp_path / "data")
    path = init(tmp_path / "data", out=tmp_path / "job.toml", overwrite=False, reporter=Reporter())
    job = load_job(path)
    assert (job.data.format, len(job.data.classes)) == (form, num_classes)
    assert Path(job.data.root) == tmp_path / "data"
    check(path, overrides=(), reporter=Reporter())


def test_categories_become_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = draw_taco(tmp_path)
    for each in tree["categories"]:
        each["name"] = f'the "{each["id"]}"'
    (tmp_path / "annotations.json").write_text(json.dumps(tree))
    path = init(tmp_path, out=None, overwrite=False, reporter=Reporter())
    job = load_job(path)
    assert job.data.classes[0].name == job.data.outside == "background"
    assert job.data.classes[1].name == 'the "0"'
    check(path, overrides=(), reporter=Reporter())


def test_an_unreadable_picture_is_named_and_passed_over(pictures: Path, tmp_path: Path, run: Run) -> None:
    (pictures / "images/3.png").write_bytes(b"words" * 100)
    done = run("init", pictures, "-o", tmp_path / "mine.toml")
    assert done.code == 0, done.err
    (warning,) = [line for line in map(json.loads, done.out.splitlines()) if line["event"] == "warning"]
    assert "skipped 1 file" in warning["text"]
    assert "images/3.png" in warning["text"]
    assert "data.max_bad_share" in warning["text"]
    assert "gdal" not in warning["text"]
    aside = ("--set", "data.max_bad_share=0.2", "--set", f"run={tmp_path / 'run'}")
    assert run("check", tmp_path / "mine.toml", *aside).code == 0


def test_two_jobs_of_one_folder_have_runs_of_their_own(pictures: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        job = load_job(init(pictures, out=tmp_path / f"{name}.toml", overwrite=False, reporter=Reporter()))
        assert job.run == f"runs/{name}"
    assert (
        load_job(init(pictures, out=None, overwrite=False, reporter=Reporter())).run
        == f"runs/{pictures.name}"
    )


def _next_lines(folder: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    init(folder, out=target, overwrite=True, reporter=Reporter("json"))
    lines: list[str] = json.loads(capsys.readouterr().out)["text"].splitlines()
    return [line.strip() for line in lines[1:]]


def test_the_next_steps_fit_the_job(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a b.toml"
    assert _next_lines(pictures, target, capsys) == [
        "next: open it, look at the lines marked CHECK, then run",
        *(f"outsize {verb} '{target}'" for verb in ("check", "plan", "train")),
        *(f"outsize {verb} 'runs/a b'" for verb in ("predict", "evaluate")),
    ]
    (tmp_path / "data").mkdir()
    draw_camvid_index(tmp_path / "data")
    target = tmp_path / "camvid.toml"
    for split in (" --split val", ""):  # without images to test on, and with them
        first, *_, predict, evaluate = _next_lines(tmp_path / "data", target, capsys)
        assert first == "next: open it, then run"
        assert "CHECK" not in target.read_text()
        assert (predict, evaluate) == (
            f"outsize predict runs/camvid{split}",
            f"outsize evaluate runs/camvid{split}",
        )
        shutil.copytree(tmp_path / "data/val", tmp_path / "data/test", dirs_exist_ok=True)
