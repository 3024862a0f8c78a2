"""Many pictures at once have the answers of each by itself; one without an answer has no class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.formats.classed.digit_files import draw_idx, section

from outsize.data.catalogue import open_data
from outsize.data.pictures import labelled_pictures
from outsize.data.sample import IGNORE
from outsize.data.scenes import label_table
from outsize.data.statistics import BandStatistics
from outsize.infer.stream import Settings
from outsize.models import build_model
from outsize.tasks.classify.answers import answer_all, classes_in, scores_of


def test_answers_do_not_depend_on_how_many_are_computed_at_once(tmp_path: Path) -> None:
    draw_idx(tmp_path)
    splits = open_data(section("idx", tmp_path), seed=0, halo_px=0, cache=tmp_path / "cache")
    pictures = labelled_pictures(splits.test, label_table(range(10), 255), 12)
    torch.manual_seed(0)
    model = build_model("digits", num_classes=10, in_channels=1, picture_px=12).eval()
    settings = Settings(batch=1, device=torch.device("cpu"))
    counted: list[int] = []
    found = [
        answer_all(model, pictures, BandStatistics((90.0,), (60.0,)), settings, num, counted.append)
        for num in (1, 3, 100)
    ]
    assert found[0].sum(1) == pytest.approx(np.ones(10), abs=1e-5)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4)
    assert counted == [1] * 10 + [3, 3, 3, 1] + [10]


def test_what_is_no_number_is_no_class_and_counts_as_wrong() -> None:
    shares = np.array([[0.2, 0.8], [np.nan, np.nan], [0.6, 0.4]], np.float32)
    found = classes_in(shares)
    assert found.tolist() == [1, IGNORE, 0]
    scores = scores_of(("a", "b"), np.array([1, 1, 0], np.uint8), found)
    assert scores.share_right == pytest.approx(2 / 3)
    assert scores.precision.tolist() == [1, 1]
    assert scores.accuracy.tolist() == [1, 0.5]
