"""One picture and its mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.data.formats.folders import open_picture
from outsize.errors import DataError
from outsize.job import DataSection


def test_a_picture_with_its_mask(tmp_path: Path) -> None:
    classes = [{"name": "a", "value": 0}, {"name": "b", "value": 1}]
    data = DataSection.model_validate({"format": "folders", "labels": "{stem}_mask.png", "classes": classes})
    Image.fromarray(np.zeros((8, 9, 3), np.uint8)).save(tmp_path / "x.jpg")
    Image.fromarray(np.ones((8, 9), np.uint8)).save(tmp_path / "x_mask.png")
    scene = open_picture(tmp_path / "x.jpg", data, tmp_path)
    assert (scene.image.num_bands, scene.labels.num_bands, scene.areas) == (3, 1, ())
    Image.fromarray(np.ones((9, 8), np.uint8)).save(tmp_path / "x_mask.png")
    with pytest.raises(DataError, match=r"x_mask\.png do not fit their image .*x\.jpg: found 9 x 8 px"):
        open_picture(tmp_path / "x.jpg", data, tmp_path)
