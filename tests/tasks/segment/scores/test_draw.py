"""The picture of input, truth and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.tasks.pictures import GAP_PX, stretch
from outsize.tasks.segment.scores.draw import colourise, draw_place, draw_triptych, mark_errors
from outsize.tasks.segment.strips import PANELS_AT
from outsize.tasks.segment.wrong import wrong_colour

CLASSES = [("red", (250, 0, 0)), ("blue", (0, 0, 250))]
WRONG = wrong_colour([colour for _, colour in CLASSES])


def test_three_panels_side_by_side(tmp_path: Path) -> None:
    image = np.zeros((40, 60, 3), np.float32)
    image[..., 1] = 200 / 255  # a green that no class has
    truth, predicted = np.zeros((40, 60), np.uint8), np.ones((40, 60), np.uint8)
    path = tmp_path / "new" / "picture.png"
    draw_triptych(path, image, truth, predicted, CLASSES, title="a scene")
    pixels = np.asarray(Image.open(path).convert("RGB"))
    assert pixels.shape[1] == 1500
    assert 300 < pixels.shape[0] < 600
    middle = pixels[pixels.shape[0] // 2 - 50 : pixels.shape[0] // 2]
    panels = [(middle == colour).all(axis=-1) for colour in ((0, 200, 0), (250, 0, 0), (0, 0, 250))]
    centres = [float(np.argwhere(panel)[:, 1].mean()) for panel in panels]
    assert centres == sorted(centres)
    for centre, place in zip(centres, (1 / 6, 1 / 2, 5 / 6), strict=True):
        assert centre / 1500 == pytest.approx(place, abs=0.05)
    assert [each.name for each in path.parent.iterdir()] == ["picture.png"]


def test_what_is_no_class_is_white() -> None:
    colours = colourise(np.uint8([[0, 1, 254, 255]]), CLASSES)
    assert colours.tolist() == [[[250, 0, 0], [0, 0, 250], [255] * 3, [255] * 3]]


def test_visible_bands_go_by_name() -> None:
    pixels = np.stack([np.arange(100.0).reshape(10, 10) * scale for scale in (1, -1, 0, 5)])
    picture = stretch(pixels, np.ones((10, 10), bool), ("NIR", "red", "blue", "green"))
    assert (np.diff(picture[..., 0].ravel()) <= 0).all()  # red runs down, green up, blue is constant
    assert (np.diff(picture[..., 1].ravel()) >= 0).all()
    assert np.ptp(picture[..., 2]) == 0


def test_stretch_spans_2_to_98_percent_of_the_valid() -> None:
    pixels = np.arange(101.0).reshape(1, 1, 101).repeat(2, axis=0)
    pixels[:, 0, 100] = 1e9
    valid = np.ones((1, 101), bool)
    valid[0, 100] = False
    picture = stretch(pixels, valid, ("", ""))
    assert picture[0, 0, 0] == 0.0
    assert picture[0, 99, 0] == 1.0
    assert picture[0, 50, 0] == pytest.approx(0.5, abs=0.02)
    assert (picture[0, 100] == 1.0).all()  # invalid: white
    assert (picture[..., 0] == picture[..., 2]).all()  # one band three times where there are two


def test_nothing_valid_is_white() -> None:
    picture = stretch(np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4), bool), ("", "", ""))
    assert (picture == 1.0).all()


def test_a_place_is_a_strip_of_four(tmp_path: Path) -> None:
    image = np.full((30, 20, 3), 0.5, np.float32)
    truth, predicted = np.zeros((30, 20), np.uint8), np.ones((30, 20), np.uint8)
    predicted[:10] = 0
    draw_place(tmp_path / "place.png", image, truth, predicted, CLASSES)
    with Image.open(tmp_path / "place.png") as picture:
        top, height = map(int, str(picture.info[PANELS_AT]).split())
        whole = np.asarray(picture)
    assert height == 30
    assert whole.shape[0] > top + height  # a legend
    for names in (whole[:top], whole[top + height :]):
        assert (names < 128).any()
    pixels = whole[top : top + height]
    assert pixels.shape == (30, 4 * 20 + 3 * GAP_PX, 3)
    seen, true, found, error = (pixels[:, start : start + 20] for start in range(0, 112, 20 + GAP_PX))
    assert (seen == 128).all()
    assert (true == (250, 0, 0)).all()
    assert (found[:10] == (250, 0, 0)).all()
    assert (found[10:] == (0, 0, 250)).all()
    assert (error[10:] == WRONG).all()
    assert (error[:10] != WRONG).any()


def test_errors_are_marked_where_both_are_known() -> None:
    truth, predicted = np.uint8([[0, 0, 255, 1]]), np.uint8([[0, 1, 1, 255]])
    picture = mark_errors(np.zeros((1, 4, 3), np.float32), truth, predicted, 2, WRONG)
    assert picture[0, 1].tolist() == list(WRONG)
    assert (picture[0, 2:] == 255).all()
    assert (picture[0, 0] == picture[0, 0, 0]).all()  # grey
    assert picture[0, 0, 0] < 255


def test_bytes_are_shown_as_they_are() -> None:
    pixels = np.full((3, 2, 2), 51, np.uint8)
    pixels[:, 0, 0] = 102
    picture = stretch(pixels, np.ones((2, 2), bool), ("red", "green", "blue"))
    np.testing.assert_allclose(picture[..., 0], [[0.4, 0.2], [0.2, 0.2]])
