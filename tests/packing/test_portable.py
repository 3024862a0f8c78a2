"""Paths of a job from one root: away and back again they name the same files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from outsize.job import check_job, dump_job, load_job
from outsize.packing.portable import bind, inner_of, portable, root_of

_CLASSES = [{"name": "a", "value": 0}, {"name": "b", "value": 1}]


@pytest.mark.parametrize(
    "data",
    [
        {"train": ["/d/one/*.tif"], "val": ["/d/two/v/*.tif"], "labels": "../masks/{stem}.png"},
        {"images": ["/d/**/a[0-9].tif"]},
        {"format": "coco", "root": "/d/one", "labels": "all.json"},
        {"format": "coco", "root": "/d/one", "train": ["/d/lists/train.json"], "val": ["/d/lists/val.json"]},
    ],
)
def test_a_job_comes_back_with_its_data_elsewhere(tmp_path: Path, data: dict[str, object]) -> None:
    job = check_job({"data": {**data, "classes": _CLASSES}}, "job")
    files = [Path("/d/one/a1.tif"), Path("/d/two/v/a2.tif"), Path("/d/lists/train.json")]
    root = root_of(job.data, files)
    assert root == Path("/d")
    packed = portable(job, root, {})
    assert "/d" not in dump_job(packed)
    where = Path("/e/new") / inner_of(job.data, root)
    tree = bind(tomllib.loads(dump_job(packed)), tmp_path, where, {})
    (tmp_path / "job.toml").write_text(dump_job(check_job(tree, "bound")))
    back = load_job(tmp_path / "job.toml")
    assert back.run == str(tmp_path / "run")
    for name in ("images", "train", "val"):
        moved = tuple(each.replace("/d/", "/e/new/") for each in getattr(job.data, name))
        assert tuple(map(_plain, getattr(back.data, name))) == moved
    assert back.data.labels == job.data.labels
    if job.data.is_dataset:
        assert back.data.root == "/e/new/one"


def _plain(pattern: str) -> str:
    return str(Path(pattern).parent.resolve() / Path(pattern).name) if "*" not in pattern else pattern


def test_weights_to_begin_from_are_named_in_the_pack(tmp_path: Path) -> None:
    tree = {"data": {"train": ["/d/*.tif"], "classes": _CLASSES}, "train": {"init": "runs/old"}}
    job = check_job({**tree, "model": {"name": "unet", "weights": "w.pt"}}, "job")
    starts = {"train.init": "start/run", "model.weights": "start/w.pt"}
    packed = portable(job, Path("/d"), starts)
    assert packed.train.init == "start/run"
    assert packed.model.options["weights"] == "start/w.pt"
    found = bind(tomllib.loads(dump_job(packed)), tmp_path, Path("/e"), starts)
    assert found["train"]["init"] == str(tmp_path / "start/run")
    assert found["model"]["weights"] == str(tmp_path / "start/w.pt")
