"""Sheets and confusion matrices for a look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.data.formats.classed.digit_files import draw_idx, section

from outsize.data.catalogue import open_data
from outsize.data.pictures import labelled_pictures
from outsize.data.scenes import label_table
from outsize.tasks.classify.sheet import Shown, draw_confusion, draw_sheet


def test_a_sheet_shows_each_picture(tmp_path: Path) -> None:
    draw_idx(tmp_path)
    splits = open_data(section("idx", tmp_path), seed=0, halo_px=0, cache=tmp_path / "cache")
    pictures = labelled_pictures(splits.test, label_table(range(10), 255), 12)
    draw_sheet(tmp_path / "sheet.png", pictures, [Shown(index, "x") for index in range(10)], ("grey",), "ten")
    page = np.asarray(Image.open(tmp_path / "sheet.png").convert("L"))
    shades = [int(np.median(page[30:100, 8 + 92 * col : 8 + 92 * col + 84])) for col in range(10)]
    assert shades == sorted(shades)  # brighter from class to class
    assert shades[-1] - shades[0] > 150


def test_a_confusion_matrix_is_darkest_on_its_diagonal(tmp_path: Path) -> None:
    counts = np.array([[9, 1], [0, 10]])
    draw_confusion(tmp_path / "matrix.png", ("a", "b"), counts, "two")
    page = np.asarray(Image.open(tmp_path / "matrix.png").convert("L"))
    left = 24
    corners = [[int(page[72 + 46 * row, left + 2 + 46 * col]) for col in range(2)] for row in range(2)]
    assert corners[0][0] < corners[0][1] < corners[1][0]
    assert corners[1][1] < corners[0][0]
