"""`outsize init` and `check` on pictures with objects: the job it writes loads, and counts are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.instances_pictures import draw_coco, draw_ids, draw_masks, draw_scene

from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.job import load_job
from outsize.progress import Reporter

QUIET = Reporter("quiet")
LAYOUTS: dict[str, tuple[Callable[[Path], object], bool, list[str]]] = {
    "masks": (lambda root: draw_masks(root, 6), False, ["house", "side-road"]),
    "folders": (lambda root: draw_ids(root, 6), True, ["object"]),
    "coco": (lambda root: draw_coco(root, 6), True, ["side-road", "house"]),
    "scenes": (draw_scene, True, ["scene"]),
}


@pytest.mark.parametrize("form", LAYOUTS)
def test_objects_are_recognised_and_counted(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, asked, names = LAYOUTS[form]
    draw(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    path = init(tmp_path / "data", out=None, overwrite=False, reporter=QUIET, objects=asked)
    job = load_job(path)
    assert (job.task, job.data.format, job.data.objects) == ("instances", form, True)
    assert [each.name for each in job.data.classes] == names
    assert job.model.name == "maskrcnn"
    more = ["data.split.block_px=32", "data.split.gap_px=2"] if form == "scenes" else []
    check(path, overrides=more, reporter=QUIET)
    told = json.loads((Path(job.run) / "data.json").read_text())
    split = json.loads((Path(job.run) / "split.json").read_text())
    assert told["objects"]["most"] == (2 if form == "coco" else 3)
    assert all(Path(entry["objects"]).is_file() for name in ("train", "val", "test") for entry in split[name])
    if form != "scenes":
        assert {name: len(split[name]) for name in ("train", "val", "test")} == {
            "train": 4,
            "val": 1,
            "test": 1,
        }
        per_picture = [1, 1] if form == "coco" else [3] if form == "folders" else [2, 1]
        assert told["objects"]["of_class"]["train"] == [4 * num for num in per_picture]


def test_what_can_be_learnt_in_two_ways_is_classes_unless_asked(tmp_path: Path) -> None:
    draw_coco(tmp_path)
    text = init(tmp_path, out=tmp_path / "a.toml", overwrite=False, reporter=QUIET).read_text()
    assert 'task = "segment"        # or each outline' in text


def test_a_check_is_recalled_with_its_objects(tmp_path: Path) -> None:
    from outsize.data.catalogue import open_data
    from outsize.data.checking.check import load_or_check

    draw_masks(tmp_path / "data", 6)
    job = load_job(init(tmp_path / "data", out=None, overwrite=False, reporter=QUIET))
    splits = open_data(job.data, seed=0, halo_px=0, cache=tmp_path / "cache")
    first = load_or_check(tmp_path / "data.json", job.data, splits, num_threads=1, reporter=QUIET)
    again = load_or_check(tmp_path / "data.json", job.data, splits, num_threads=1, reporter=QUIET)
    assert first.objects is not None
    assert again.objects == first.objects


def test_the_table_shows_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_masks(tmp_path / "data", 6)
    path = init(tmp_path / "data", out=None, overwrite=False, reporter=QUIET)
    check(path, overrides=[f"run={tmp_path}/run"], reporter=Reporter("bar"))
    said = capsys.readouterr().out
    assert "objects: 12 in train, 3 in val, 3 in test; the most, 3, in " in said
    rows = [line.split() for line in said.splitlines() if line.strip().startswith(("house", "side-road"))]
    assert rows == [["house", "8", "2", "2"], ["side-road", "4", "1", "1"]]


def test_a_mask_of_classes_is_told_from_ids(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 2, (40, 40), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"data/labels/{number}.png")
        Image.fromarray(pixels * 200).save(tmp_path / f"data/images/{number}.png")
    path = init(tmp_path / "data", out=None, overwrite=False, reporter=QUIET, objects=True)
    check(path, overrides=[f"run={tmp_path}/run"], reporter=QUIET)
    problems = json.loads((tmp_path / "run/data.json").read_text())["problems"]
    assert any("do not tell objects apart" in each["text"] for each in problems)


def test_the_command_line_refuses_in_one_line(run: Callable[..., object], tmp_path: Path) -> None:
    draw_masks(tmp_path / "data", 3)
    init(tmp_path / "data", out=tmp_path / "job.toml", overwrite=False, reporter=QUIET)
    Image.fromarray(np.ones((9, 9), np.uint8)).save(tmp_path / "data/a-1/a-1-house-9.png")
    run("check", tmp_path / "job.toml").refused("a-1-house-9.png", "9 x 9 px", "48 x 64 px")  # type: ignore[attr-defined]
    (tmp_path / "data/a-1/a-1-house-9.png").rename(tmp_path / "data/a-1/a-1-hose-9.png")
    run("check", tmp_path / "job.toml").refused("'hose'", "'house'")  # type: ignore[attr-defined]
