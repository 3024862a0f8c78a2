"""The stages of a job: its verbs in order, what each reads, and which keys of the job decide."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.conftest import write_job

from outsize.errors import JobError
from outsize.job import load_workflow
from outsize.workflow.stages import WorkflowStage, fixed_folder, stages_of

_SECTIONS = '\n[acquire]\nurls = ["https://host/*.tif"]\n[prepare]\nimages = ["raw/*.tif"]\n'


def _stages(
    folder: Path, workflow: str = "", sections: str = _SECTIONS, **changes: str
) -> list[WorkflowStage]:
    job = write_job(folder / "job.toml", folder / "prepared", **changes)
    job.write_text(job.read_text() + sections)
    (folder / "flow.toml").write_text(f'jobs = ["job.toml"]\n{workflow}')
    return stages_of(folder / "flow.toml", load_workflow(folder / "flow.toml"))


def test_each_verb_comes_after_the_one_before_and_reads_what_that_left(tmp_path: Path) -> None:
    stages = _stages(tmp_path)
    assert [each.verb for each in stages] == ["acquire", "prepare", "train", "predict", "evaluate", "report"]
    assert [each.after for each in stages] == [(), *((each.name,) for each in stages[:-1])]
    for before, each in pairwise(stages[:-1]):
        assert set(before.outputs) <= set(each.inputs), each.name
    assert [each.uses for each in stages] == ["network", "cores", "device", "device", "device", "cores"]


def test_verbs_without_their_section_are_left_out(tmp_path: Path) -> None:
    stages = _stages(tmp_path, sections="")
    assert [each.verb for each in stages] == ["train", "predict", "evaluate", "report"]
    assert stages[0].inputs == (tmp_path / "prepared",)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("lr = 1e-3", "lr = 2e-3", {"train"}),
        ('host_memory = "1GiB"', 'host_memory = "2GiB"', {"train", "predict", "evaluate"}),
        ("raw/*.tif", "raw/a*.tif", {"prepare"}),
        ("https://host", "https://other", {"acquire"}),
    ],
)
def test_a_key_of_the_job_decides_for_those_that_heed_it(
    tmp_path: Path, old: str, new: str, changed: set[str]
) -> None:
    before = {each.verb: each.settings for each in _stages(tmp_path)}
    job = tmp_path / "job.toml"
    assert old in job.read_text()
    job.write_text(job.read_text().replace(old, new))
    after = stages_of(tmp_path / "flow.toml", load_workflow(tmp_path / "flow.toml"))
    assert {each.verb for each in after if before[each.verb] != each.settings} - {"report"} == changed


def test_what_a_job_says_of_predictions_reaches_a_run_that_is_older(tmp_path: Path) -> None:
    stages = _stages(tmp_path, sections=_SECTIONS + "[predict]\nmin_area_m2 = 4.0\n")
    words = next(each.words for each in stages if each.verb == "predict")
    assert "predict.min_area_m2=4.0" in words
    assert "limits.tile_px=64" in words


def test_jobs_side_by_side_have_names_of_their_own(tmp_path: Path) -> None:
    _stages(tmp_path)
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "other.toml").write_text(text)
    (tmp_path / "flow.toml").write_text('jobs = ["job.toml", "other.toml"]\n')
    with pytest.raises(JobError, match="have one run"):
        stages_of(tmp_path / "flow.toml", load_workflow(tmp_path / "flow.toml"))
    (tmp_path / "other.toml").write_text(text.replace('/run"', '/run2"'))
    stages = stages_of(tmp_path / "flow.toml", load_workflow(tmp_path / "flow.toml"))
    assert [each.name for each in stages if not each.after] == ["job:acquire", "other:acquire"]


def test_a_mistake_in_the_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="unknown"):
        _stages(tmp_path, "job = 1\n")
    with pytest.raises(JobError, match="stages"):
        _stages(tmp_path, 'stages = ["trian"]\n')


def test_the_folder_of_a_pattern_ends_before_its_first_star() -> None:
    assert fixed_folder(Path("/a/b/*.tif")) == fixed_folder(Path("/a/b/*/c/*.tif")) == Path("/a/b")
    assert fixed_folder(Path("/a/b/c.tif")) == Path("/a/b")
