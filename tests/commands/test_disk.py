"""A full disk, a folder that cannot be written, a kill: one line, nothing half-written, earlier results intact."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import rasterio

_LONG = pytest.mark.long


def _is_whole(path):
    """Read a file of a run to its end, as its readers do."""
    if path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".jsonl":
        for line in path.read_text().splitlines(keepends=True):
            assert line.endswith("\n")
            json.loads(line)
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        load_file(path)
    elif "tfevents" in path.name:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

        assert sum(len(record) + 16 for record in RawEventFileLoader(str(path)).Load()) == path.stat().st_size
    else:
        assert path.suffix == ".toml" or path.name == ".outsize", path


# 200 bytes stop the first note of the working raster, 20,000 its first pixels, 55,000 the GeoPackage alone
_POLYGONS_BYTES = 55_000


@pytest.mark.parametrize("limit_bytes", [200, pytest.param(20_000, marks=_LONG)])
def test_predict_on_a_full_disk_leaves_nothing(run, own_run, scene, tmp_path, unchanged, limit_bytes):
    unchanged()
    for out in ((), ("--out", tmp_path / "new" / "maps")):
        error = run("predict", own_run, scene, *out, limit_bytes=limit_bytes).refused("test-2")
        assert str(out[1] if out else own_run) in error


def test_tiles_are_kept_where_the_disk_has_no_room_for_the_polygons(run, own_run, own_scenes):
    maps = own_run / "predictions"
    before = {path.name: path.read_bytes() for path in maps.iterdir()}
    done = run("predict", own_run, own_scenes / "test-2.tif", limit_bytes=_POLYGONS_BYTES)
    kept = maps / ".test-2.work"
    done.refused("test-2.gpkg", f"12 of 12 tiles are done and kept in {kept}", "run the same command again")
    left = {path.name: path.read_bytes() for path in maps.iterdir() if path.is_file()}
    assert left == before
    assert {path.name for path in kept.iterdir()} == {
        "classes.tif",
        "confidence.tif",
        "tiles.json",
        "tiles.done",
    }
    again = run("predict", own_run, own_scenes / "test-2.tif")
    assert again.code == 0, again.err
    progress = [event for event in map(json.loads, again.out.splitlines()) if event["event"] == "progress"]
    assert progress[0]["done"] == 12
    assert {path.name for path in maps.iterdir()} == set(before)


def test_the_largest_of_these_limits_stops_the_polygons_alone(run, own_run, scene, tmp_path):
    done = run("predict", own_run, scene, "--set", "predict.polygons='none'", limit_bytes=_POLYGONS_BYTES)
    assert done.code == 0, done.err


# bytes that hold nothing; facts.json but no plan.json; all but the checkpoint
@pytest.mark.parametrize(
    "limit_bytes",
    [pytest.param(10, marks=_LONG), 300, pytest.param(10_000, marks=_LONG)],
)
def test_train_on_a_full_disk_leaves_only_whole_files(run, job_path, tmp_path, limit_bytes):
    error = run("train", job_path, limit_bytes=limit_bytes).refused(str(tmp_path / "run"))
    assert "free space" in error
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    for path in files:
        _is_whole(path)
    assert bool(files) == (tmp_path / "run").exists()
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.long
def test_logs_on_a_full_disk_end_with_a_whole_line(run, job_path, tmp_path):
    # a model of 700 bytes, so that the logs are the first to reach the limit
    tiny = ("model.levels=2", "model.width=1", "model.convs=1", "model.norm='none'", "train.optimizer='sgd'")
    long = (
        "train.momentum=0.0",
        "train.batch=1",
        "train.tile_px=8",
        "train.samples_per_epoch=10",
        "train.epochs=40",
    )
    changes = [part for each in (*tiny, *long) for part in ("--set", each)]
    error = run("train", job_path, *changes, limit_bytes=8_000).refused(str(tmp_path / "run"))
    assert "metrics.jsonl" in error or "tfevents" in error
    for path in (tmp_path / "run").rglob("*.*"):
        _is_whole(path)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) > 10
    done = run("train", job_path, *changes, "--resume", "--set", "train.epochs=40")
    assert done.code == 0, done.err


@pytest.mark.parametrize("verb", ["evaluate", "verify"])
def test_figures_on_a_full_disk(run, own_run, unchanged, verb):
    unchanged()
    run(verb, own_run, limit_bytes=20).refused(str(own_run), "free space")


def _below_a_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "below"


def _read_only(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    return tmp_path / "closed" / "below"


@pytest.mark.parametrize("make", [_below_a_file, _read_only])
@pytest.mark.parametrize("verb", ["train", "predict"])
def test_an_output_folder_that_cannot_be_written(
    run, own_run, job_path, scene, tmp_path, unchanged, make, verb
):
    target = make(tmp_path)
    unchanged()
    args = (own_run, scene, "--out", target) if verb == "predict" else (job_path, "--set", f"run='{target}'")
    run(verb, *args, unprivileged=True).refused(str(target))


@pytest.mark.parametrize("verb", ["evaluate", "verify", "predict"])
def test_a_read_only_run(run, own_run, scene, unchanged, verb):
    for folder in (own_run, own_run / "predictions"):
        folder.chmod(0o555)
    unchanged()
    run(verb, own_run, *([scene] if verb == "predict" else []), unprivileged=True).refused(str(own_run))
    assert os.access(own_run, os.R_OK)


def test_a_scene_that_may_not_be_read(run, own_run, scene, tmp_path, unchanged):
    closed = shutil.copy(scene, tmp_path / "closed.tif")
    unchanged()
    closed.chmod(0o000)
    try:
        run("predict", own_run, closed, unprivileged=True).refused(str(closed), "permission")
    finally:
        closed.chmod(0o644)


@pytest.mark.parametrize("num_tiles", [pytest.param(1, marks=_LONG), 5])
def test_a_killed_prediction_is_taken_up_again(run, own_run, scene, tmp_path, num_tiles):
    maps = own_run / "predictions"
    undisturbed = {path.name: path.read_bytes() for path in maps.glob("*.tif")}
    assert set(undisturbed) == {"test-2.tif", "test-2_confidence.tif"}
    out = ("--out", tmp_path / "maps")
    assert run("predict", own_run, scene, *out, kill_after_tiles=num_tiles).code == -signal.SIGKILL
    assert not list((tmp_path / "maps").glob("*.tif"))
    done = run("predict", own_run, scene, *out)
    assert done.code == 0, done.err
    progress = [event for event in map(json.loads, done.out.splitlines()) if event["event"] == "progress"]
    assert progress[0]["done"] == num_tiles
    for name, data in undisturbed.items():
        with rasterio.open(maps / name) as before, rasterio.open(tmp_path / "maps" / name) as after:
            assert (before.read() == after.read()).all()
        assert (tmp_path / "maps" / name).read_bytes() == data
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == sorted(
        p.name for p in maps.iterdir()
    )
