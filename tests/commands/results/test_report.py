"""`outsize report`, from a real run to a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outsize import cli
from outsize.commands.results.report import report
from outsize.errors import OutputError
from outsize.files.ownership import is_ours
from outsize.measure.origin import origin
from outsize.progress import Reporter


def test_a_trained_run_becomes_a_page(predicted_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(predicted_run, tmp_path / "run"))
    assert CliRunner().invoke(cli.app, ["evaluate", str(run), "--quiet"]).exit_code == 0
    assert CliRunner().invoke(cli.app, ["evaluate", str(run), str(predicted_run), "--quiet"]).exit_code == 0
    result = CliRunner().invoke(cli.app, ["report", str(run)])
    assert result.exit_code == 0, result.output
    event = json.loads(result.output)
    assert event["path"] == str(run / "report.html")
    page = (run / "report.html").read_text()
    assert event["num_bytes"] == len(page.encode())
    for told in ("Scores: test", "Best places", "Training", "Where time went", "versions"):
        assert told in page, told
    assert "The maps agree on 100.0 %" in page
    assert page.count("data:image/png;base64,") == 4


def test_several_runs_go_where_they_are_asked_to(trained_run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained_run, tmp_path / "other"))
    target = report([trained_run, other], out=tmp_path / "new" / "page.html", reporter=Reporter("quiet"))
    assert target == tmp_path / "new" / "page.html"
    assert "Runs side by side" in target.read_text()
    assert not (trained_run / "report.html").exists()


def test_a_page_of_another_make_stays_unless_a_user_says_so(trained_run: Path, tmp_path: Path) -> None:
    target, quiet = tmp_path / "page.html", Reporter("quiet")
    target.write_text("mine")
    with pytest.raises(OutputError, match=r"page.html would be written over: .*add --overwrite"):
        report([trained_run], out=target, reporter=quiet)
    assert target.read_text() == "mine"
    for overwrite in (True, False):  # a second time it is ours
        report([trained_run], out=target, reporter=quiet, overwrite=overwrite)
    assert is_ours(target)


def test_a_run_knows_what_it_came_from(trained_run: Path) -> None:
    facts = json.loads((trained_run / "facts.json").read_text())
    assert facts["versions"] == origin()["versions"]
    assert {"python", "GDAL", "torch", "outsize"} <= facts["versions"].keys()
    assert facts["folder"] == str(Path.cwd())
    assert facts["command"]
