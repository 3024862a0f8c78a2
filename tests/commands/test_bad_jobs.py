"""A job, a run or an option that is wrong is refused in one line, and nothing is left behind."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch

_LONG = pytest.mark.long

# what is replaced in the job, by what, and what the refusal names besides the job
BAD_JOBS = {
    "broken TOML": ("seed = 3", "seed = = 3", ("line 3",)),
    "unknown key": ("epochs = 2", "epoch = 2", ("'train.epoch'", "2", "did you mean 'epochs'?")),
    "unknown section": ("[limits]", "[limit]", ("'limit'", "did you mean 'limits'?")),
    "unknown model": ('name = "unet"\nl', 'name = "unett"\nl', ("'unett'", "did you mean 'unet'?")),
    "unknown option": ("levels = 3", "depth = 3", ("'depth'", "levels")),
    "option out of range": ("levels = 3", "levels = 0", ("levels", "0")),
    "value out of range": ("batch = 2", "batch = 0", ("'train.batch'", "0")),
    "value of another kind": ("epochs = 2", 'epochs = "many"', ("'train.epochs'", "'many'")),
    "size not understood": ('"1GiB"', '"1 lightyear"', ("'1 lightyear'", "16GiB")),
    "size of another kind": ('"1GiB"', "[1]", ("[1]", "16GiB")),
    "colour": ('name = "field"', 'name = "field"\ncolour = [1, 2]', ("colour", "[1, 2]")),
    "colour in hex": ('name = "field"', 'name = "field"\ncolour = "#zz"', ("colour", "'#zz'")),
    "class twice": ("value = 1", "value = 0", ("data.classes", "twice")),
    "ignore value": ("bands =", "ignore_value = 300\nbands =", ("ignore_value", "300")),
    "labels name": ("bands =", 'labels = "{stam}.tif"\nbands =', ("data.labels", "'{stam}.tif'", "{stem}")),
    "nothing to train on": ("train = [", "train = []\nunused = [", ("unused",)),
    "train empty": None,
    # windows that no tiles could make smaller: else every way to cut them is looked at
    "batch too large": (
        "tile_px = 64\nbatch = 2",
        "tile_px = 16\nbatch = 900000",
        ("900,000", "train.batch = "),
    ),
    "limit too small": ('"1GiB"', '"200KiB"', ("KiB", "limits.host_memory")),
    "core not a multiple": ("tile_px = 64\n", "tile_px = 65\n", ("65 px", "limits.tile_px = 80")),
    "halo too short": ('"1GiB"', '"1GiB"\nhalo_px = 3', ("3 px", "limits.allow_approximate")),
    "trainable": ("batch = 2", 'batch = 2\nphases = [{trainable = ["tail"]}]', ("'tail'", "head")),
}


# `plan` and `train` refuse alike, so they take turns
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=_LONG if each == "batch too large" else ()) for each in BAD_JOBS]
)
def test_job_is_refused(run, job_path, unchanged, name):
    change, verb = BAD_JOBS[name], ("plan", "train")[list(BAD_JOBS).index(name) % 2]
    text = job_path.read_text()
    if change is None:
        lines = [line for line in text.splitlines() if not line.startswith("train = [")]
        text, found = "\n".join(lines), ("data.train",)
    else:
        old, new, found = change
        assert text.count(old) >= 1
        before, _, after = text.rpartition(old) if old == "tile_px = 64\n" else text.partition(old)
        text = before + new + after
    job_path.write_text(text)
    unchanged()
    run(verb, job_path).refused(str(job_path), *found)


def test_what_looks_at_the_whole_picture_is_refused_where_passes_are_not_wanted(run, job_path, unchanged):
    text = job_path.read_text().replace("levels = 3", 'levels = 3\nnorm = "group"')
    job_path.write_text(text + "passes = false\n")
    unchanged()
    run("plan", job_path).refused(str(job_path), "encoder.0.1", "group_norm", "allow_approximate")


@pytest.mark.parametrize("verb", ["plan", "train", "info", "evaluate", "verify", "predict"])
def test_what_is_not_there_is_refused(run, tmp_path, scene, unchanged, verb):
    (tmp_path / "empty").mkdir()
    unchanged()
    where = tmp_path / "empty" if verb not in ("plan", "train") else tmp_path / "empty" / "job.toml"
    run(verb, where, *([scene] if verb == "predict" else [])).refused(str(where))


OPTIONS = {
    "no value": (("train", "--set", "nonsense"), ("'nonsense'", "KEY=VALUE")),
    "unknown key": (("train", "--set", "train.lrr=1"), ("'train.lrr'", "did you mean 'lr'?")),
    "bad value": (("train", "--set", "train.lr=-1"), ("'train.lr'", "-1")),
    "into a value": (("train", "--set", "seed.x=1"), ("'seed.x=1'",)),
    "cuda": (("train", "--device", "cuda"), ("cuda", "cpu", "--device")),
    "cuda, plan": (("plan", "--device", "cuda:7"), ("cuda:7", "--device")),
    "no device": (("plan", "--device", "abacus"), ("abacus", "--device")),
}


@pytest.mark.parametrize(("args", "found"), OPTIONS.values(), ids=OPTIONS)
def test_option_is_refused(run, job_path, unchanged, args, found):
    if "cuda" in args and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    unchanged()
    run(args[0], job_path, *args[1:]).refused(*found)


RUN_OPTIONS = {
    "device": (("predict", "SCENE", "--device", "cuda:9"), ("cuda:9", "--device")),
    "halo": (("predict", "SCENE", "--set", "limits.halo_px=2"), ("2 px", "allow_approximate")),
    "limit": (("predict", "SCENE", "--set", "limits.host_memory=9000B"), ("8.8 KiB", "limits.host_memory")),
    "verify, limit": (("verify", "--set", "limits.host_memory=9000B"), ("8.8 KiB", "limits.host_memory")),
    "split": (("evaluate", "--split", "exam"), ("'exam'", "test", "--split")),
    "no map yet": (("evaluate", "--split", "val"), ("val-1.tif", "outsize predict")),
    "address": (("predict", "https://example.com/scene.tif"), ("example.com/scene.tif", "an address")),
    "labels in a folder": (("predict", "FOLDER"), ("_labels.tif", "bands")),
    "map onto scene": (("predict", "FOLDER/test-2.tif", "--out", "FOLDER"), ("test-2.tif", "--out")),
}


@pytest.mark.parametrize(("args", "found"), RUN_OPTIONS.values(), ids=RUN_OPTIONS)
def test_option_on_a_run_is_refused(run, copied_run, own_scenes, scene, unchanged, args, found):
    unchanged()
    given = [each.replace("SCENE", str(scene)).replace("FOLDER", str(own_scenes)) for each in args]
    run(given[0], copied_run, *given[1:]).refused(*found)


def test_a_used_run_folder_is_kept(run, copied_run, job_path, unchanged):
    unchanged()
    run("train", job_path, "--set", f"run='{copied_run}'").refused(str(copied_run), "--resume", "--overwrite")


def test_a_changed_job_is_not_resumed(run, copied_run, job_path, unchanged):
    unchanged()
    changed = ("--set", f"run='{copied_run}'", "--set", "train.batch=1", "--resume")
    run("train", job_path, *changed).refused(str(copied_run), "train.batch = 1 instead of")


def test_overwriting_begins_only_when_the_new_job_is_good(run, copied_run, job_path, unchanged):
    unchanged()
    changed = ("--set", f"run='{copied_run}'", "--set", "model.name='unett'", "--overwrite")
    run("train", job_path, *changed).refused("'unett'")


class _Evil:
    def __reduce__(self):
        return (print, ("code in a checkpoint was run",))


def _break_card(text: str) -> bytes:
    header = json.dumps({"__metadata__": {"card": text}}).encode()
    return len(header).to_bytes(8, "little") + header


CHECKPOINTS = {
    "missing": lambda _: None,
    "truncated": lambda good: good[: len(good) // 2],
    "zero bytes": lambda _: b"",
    "no safetensors": lambda _: b"weights" * 100,
    "pickle": lambda _: pickle.dumps(_Evil()),
    "no card": lambda _: (2).to_bytes(8, "little") + b"{}",
    "card of words": lambda _: _break_card("words"),
    "card without classes": lambda _: _break_card('{"version": 1}'),
    "card with a class out of range": lambda _: _break_card(
        '{"version": 1, "classes": [{"name": "a", "value": 999}]}'
    ),
    "other version": lambda _: _break_card('{"version": 99}'),
}


@pytest.mark.parametrize("spoil", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("verb", ["predict", "verify"])
def test_checkpoint_is_refused(run, copied_run, scene, unchanged, verb, spoil):
    best = copied_run / "checkpoints" / "best.safetensors"
    data = spoil(best.read_bytes())
    best.unlink()
    if data is not None:
        best.write_bytes(data)
    unchanged()
    outcome = run(verb, copied_run, *([scene] if verb == "predict" else []))
    outcome.refused(str(best))
    assert "code in a checkpoint" not in outcome.out
    assert "pydantic" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    "spoil", [CHECKPOINTS["truncated"], CHECKPOINTS["no card"]], ids=["truncated", "empty"]
)
def test_training_state_is_refused(run, copied_run, trained_run, unchanged, spoil):
    state = copied_run / "checkpoints" / "state.safetensors"
    state.write_bytes(spoil(state.read_bytes()))
    job = shutil.copy(trained_run.parent / "job.toml", copied_run.parent / "job.toml")
    unchanged()
    run("train", job, "--resume", "--set", f"run='{copied_run}'").refused(str(state))


def test_weights_of_another_model_are_refused(run, copied_run, scene, job_path, unchanged):
    from safetensors import safe_open
    from safetensors.torch import save_file

    best = copied_run / "checkpoints" / "best.safetensors"
    with safe_open(best, framework="pt") as file:
        card = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys() if name != "head.bias"}  # noqa: SIM118
    save_file(weights, best, metadata=card)
    unchanged()
    run("predict", copied_run, scene).refused(str(best), "head.bias")


def test_group_norm_runs_when_allowed_and_says_how_far_off_it_is(run, job_path, scene, tmp_path):
    text = job_path.read_text().replace("levels = 3", 'levels = 3\nnorm = "group"')
    job_path.write_text(text + "allow_approximate = true\npasses = false\n")
    assert run("train", job_path, "--set", "train.epochs=1", "--set", "train.samples_per_epoch=2").code == 0
    done = run("predict", tmp_path / "run", scene)
    assert done.code == 0, done.err
    told = [event for event in map(json.loads, done.out.splitlines()) if event["event"] == "approximate"]
    assert told[0]["relative_difference"] > 1e-4
    record = json.loads((tmp_path / "run" / "predictions" / "predict.json").read_text())["scenes"][0]
    assert record["exact"] is False
    assert record["relative_difference"] == told[0]["relative_difference"]
    run("predict", tmp_path / "run", scene, "--set", "limits.allow_approximate=false").refused("encoder.0.1")
