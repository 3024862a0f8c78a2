"""The section on what may vary: keys by their sections, ranges and choices, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.errors import JobError
from outsize.job import Job, Range, dump_job, load_job

_HEAD = '[data]\ntrain = ["a.tif"]\nclasses = [{name = "a", value = 0}, {name = "b", value = 1}]\n'


def _job(folder: Path, text: str) -> Job:
    path = folder / "job.toml"
    path.write_text(f"{_HEAD}{text}\n")
    return load_job(path)


def test_keys_are_named_by_their_sections_however_they_are_written(tmp_path: Path) -> None:
    lr = Range(low=1e-4, high=1e-2, log=True)
    for text in (
        "[tune]\ntrain.lr = {low = 1e-4, high = 1e-2, log = true}\ntrain.batch = [4, 8]",
        '[tune]\n"train.lr" = {low = 1e-4, high = 1e-2, log = true}\n"train.batch" = [4, 8]',
        "[tune.train]\nbatch = [4, 8]\n[tune.train.lr]\nlow = 1e-4\nhigh = 1e-2\nlog = true",
    ):
        assert _job(tmp_path, text).tune == {"train.lr": lr, "train.batch": (4, 8)}
    assert Range(low=4, high=8).is_whole
    assert not lr.is_whole


def test_a_job_that_varies_nothing_is_written_without_the_section(tmp_path: Path) -> None:
    assert "tune" not in dump_job(_job(tmp_path, ""))


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = _job(
        tmp_path, "[tune]\ntrain.lr = {low = 1e-4, high = 1e-2}\nmodel = [{name = 'unet'}, {name = 'erfnet'}]"
    )
    path = tmp_path / "written.toml"
    path.write_text(dump_job(job))
    assert load_job(path).tune == job.tune


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train.lr = 0.1", "found train.lr = 0.1, needed a range such as"),
        ("train.lr = [0.1]", "a list of two choices or more"),
        ("data.train = ['a', 'b']", "found 'data.train', needed a key such as train.lr or model.width"),
        ("train.lr = {low = 2, high = 1}", "correct low must be below high"),
        ("train.lr = {low = 0, high = 1, log = true}", "correct a range with log begins above 0"),
        ("train.lr = {low = 'a', high = 1}", "correct low: "),
        ("train.lr = {low = 1, high = 2, lg = true}", "correct lg: "),
    ],
)
def test_what_is_no_range_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(JobError) as raised:
        _job(tmp_path, f"[tune]\n{text}")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
