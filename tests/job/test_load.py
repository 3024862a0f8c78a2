"""The job file: what is checked, what a mistake is answered with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outsize.errors import JobError
from outsize.job.fields import parse_colour
from outsize.job.load import dump_job, load_job


def test_job_round_trips_through_toml(job_path: Path) -> None:
    job = load_job(job_path)
    again = job_path.with_name("again.toml")
    again.write_text(dump_job(job))
    assert load_job(again) == job


def test_unknown_key_names_the_nearest(job_path: Path) -> None:
    with pytest.raises(JobError, match=r"unknown key 'train.epoch' .* did you mean 'epochs'\?"):
        load_job(job_path, ["train.epoch=3"])


def test_unknown_key_in_a_list_names_the_nearest(job_path: Path) -> None:
    text = job_path.read_text().replace("value = 0", "valu = 0", 1)
    job_path.write_text(text)
    with pytest.raises(JobError, match="valu"):
        load_job(job_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.lr=-1", "train.lr"),
        ("train.batch=two", "train.batch"),
        ("limits.gpu_memory=16 apples", "16 apples"),
        ("train.optimizer=adam", "adam"),
        ("train.tile_px=7", "'train.tile_px'"),
        ("train.tile_px=[64]", "[height, width]"),
        ("train.tile_px=[64, 1.5]", "[height, width]"),
        ("train.max_minutes=inf", "train.max_minutes"),
        ("no_equals", "KEY=VALUE"),
        ("seed.deep=1", "reaches into a value"),
    ],
)
def test_bad_values_are_one_line(job_path: Path, override: str, words: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(job_path, [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_win(job_path: Path) -> None:
    job = load_job(job_path, ["train.lr=0.5", "limits.gpu_memory=16GiB", "model.width=6"])
    assert job.train.lr == 0.5
    assert job.limits.gpu_memory == 16 * 2**30
    assert job.model.options["width"] == 6


def test_broken_toml_and_missing_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\n")
    with pytest.raises(JobError, match="is no TOML"):
        load_job(broken)
    with pytest.raises(JobError, match="cannot read job"):
        load_job(tmp_path / "absent.toml")


def test_colours() -> None:
    assert parse_colour("#ff8000") == parse_colour([255, 128, 0]) == (255, 128, 0)


@pytest.mark.parametrize(("given", "meant"), [("8", "8GiB"), ('"16"', "16GiB"), ("16000", "16000MiB")])
def test_a_limit_without_its_unit_is_refused(job_path: Path, given: str, meant: str) -> None:
    with pytest.raises(
        JobError, match=f"'limits.gpu_memory'.* needed a size with its unit; did you mean {meant}"
    ):
        load_job(job_path, [f"limits.gpu_memory={given}"])
    assert load_job(job_path, ["limits.gpu_memory=8000B"]).limits.gpu_memory == 8000
    assert load_job(job_path, [f"limits.gpu_memory={2**20}"]).limits.gpu_memory == 2**20


def test_a_mistake_on_the_command_line_is_none_of_the_file(job_path: Path) -> None:
    for override in ("predict.vectors=gpkg", "limit.x=1", "train.lr=-1", "epochs=1"):
        with pytest.raises(JobError, match=r"(unknown key|bad value for) '[\w.]+' in --set: ") as caught:
            load_job(job_path, ["seed=1", override])
        assert job_path.name not in str(caught.value)
    job_path.write_text(job_path.read_text().replace("epochs = 2", "epoch = 2"))
    with pytest.raises(JobError, match=f"'train.epoch' in {job_path}"):
        load_job(job_path, ["train.lr=0.1"])


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("epochs=1", "'train.epochs'"),
        ("predict.vectors=gpkg", "'predict.objects.vectors' or 'predict.boxes.vectors'"),
        ("tile_px=64", "'train.tile_px' or 'limits.tile_px'"),
    ],
)
def test_a_key_of_another_section_is_found(job_path: Path, override: str, meant: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(job_path, [override])
    assert f"did you mean {meant}?" in str(caught.value)


def test_a_job_that_is_a_pipe_or_a_device_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zeros.toml").symlink_to("/dev/zero")
    (tmp_path / "giant.toml").touch()
    os.truncate(tmp_path / "giant.toml", 2**40)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    for name, found in (
        ("pipe", "a pipe and no plain file"),
        ("zeros", "a device and no plain file"),
        ("giant", "1.0 TiB, more than"),
        ("deep", "nested too deeply"),
    ):
        with pytest.raises(JobError, match=found):
            load_job(tmp_path / f"{name}.toml")
