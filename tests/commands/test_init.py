"""`outsize init`: a job file that loads and checks, and never over another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.miniatures import draw_camvid_colours, draw_camvid_index, draw_cityscapes, draw_taco

from outsize.commands.check import check
from outsize.commands.init import init
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
