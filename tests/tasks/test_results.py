"""The file of each scene that scores are counted from is the one its ledger names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import WriteRaster

from outsize.data.scenes import LabelledScene
from outsize.errors import RunError
from outsize.raster.reading import describe
from outsize.runs import RunFolder
from outsize.tasks.results import results_of


def test_files_are_those_of_the_ledger_and_a_scene_without_one_is_refused(
    tmp_path: Path, write_raster: WriteRaster
) -> None:
    run = RunFolder(tmp_path / "run")
    run.predictions.mkdir(parents=True)
    image = describe(write_raster("a.tif", np.zeros((1, 4, 4), np.uint8)))
    scene = LabelledScene(image, image)
    (run.predictions / "a.json").write_text("{}")

    def told(**entry: Any) -> list[tuple[Path, float]]:
        held = {"scene": str(image.path.resolve()), "map": str(run.predictions / "a.tif"), **entry}
        (run.predictions / "predict.json").write_text(json.dumps({"scenes": [held]}))
        return results_of(run, [scene], "objects", "objects")

    file = run.predictions / "a.json"
    assert told(objects=str(file), min_score=0.5) == [(file, 0.5)]
    for entry in ({}, {"objects": str(file)}):  # as of a map of classes
        with pytest.raises(
            RunError, match=r"no objects of a.tif: found none in .*, needed a predicted scene; run"
        ):
            told(**entry)
