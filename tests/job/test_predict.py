"""What a prediction leaves behind is checked like the rest of a job."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from outsize.errors import JobError
from outsize.job.load import check_job, load_job
from outsize.job.predict import ObjectsSection, PredictSection
from outsize.models import build_model
from outsize.train.phases import check_trainable

JOB = """
task = "instances"
[data]
images = ["*.tif"]
classes = [{ name = "a", value = 1 }]
[predict.objects]
"""


def test_wishes_are_read_and_the_rest_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB + 'shape = "point"\n')
    assert load_job(tmp_path / "job.toml").predict == PredictSection(objects=ObjectsSection(shape="point"))


@pytest.mark.parametrize(
    ("line", "part"),
    [("min_scor = 1", "did you mean 'min_score'"), ("min_score = 2", "predict.objects.min_score")],
)
def test_mistakes_are_told(tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / "job.toml").write_text(JOB + line + "\n")
    with pytest.raises(JobError, match=part):
        load_job(tmp_path / "job.toml")


def test_the_job_of_the_page_for_those_who_come_from_grass_is_one() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "from-i-ann-maskrcnn.md"
    text = page.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    job = check_job(tomllib.loads(text), str(page))
    assert sum(phase.epochs or 0 for phase in job.train.phases) == 200
    options = {**job.model.options, "backbone": "resnet18"}  # for speed; the page's own is one of those known
    model = build_model(job.model.name, num_classes=2, in_channels=3, **options)
    for phase in job.train.phases:
        check_trainable(model, phase.trainable)
