"""`outsize info`: short for a person, whole for a program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from outsize.commands.results.info import info
from outsize.progress import Reporter


def test_many_maps_are_counted_and_few_named(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    maps = run / "predictions"
    shutil.rmtree(maps, ignore_errors=True)
    maps.mkdir()
    for number in range(202):
        (maps / f"map-{number:03}.tif").touch()
    facts = info(run, Reporter("json"))
    event = json.loads(capsys.readouterr().out)
    assert (
        event["text"]
        .splitlines()[-1]
        .endswith("202: map-000.tif, map-001.tif, map-002.tif, map-003.tif and 198 more")
    )
    assert facts["maps"].count(".tif") == event["maps"].count(".tif") == 202
