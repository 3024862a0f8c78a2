"""Drawn streets: the same for the same seed, labels that can be read, objects of every difficulty."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from outsize.data.boxes import Boxes
from outsize.data.formats.boxed import read_kitti
from outsize.data.synthetic import draw_street, draw_streets
from outsize.data.synthetic.street_things import CAR, Thing, furnish
from outsize.data.synthetic.streets import _label_lines, _see
from outsize.metrics.kitti import DIFFICULTIES

_SMALL = (94, 311)


def _counted(boxes: Boxes) -> set[str]:
    found = set()
    for name, (least_px, most_hidden, most_cut) in DIFFICULTIES.items():
        fits = (boxes.occluded <= most_hidden) & (boxes.truncated <= most_cut) & (boxes.labels == CAR)
        found |= {name} if ((boxes.heights_px >= least_px) & fits).any() else set()
    return found


def test_labels_are_kittis_and_every_difficulty_occurs(tmp_path: Path) -> None:
    draw_streets(tmp_path, 6, seed=0)
    labels: Counter[str] = Counter()
    difficulties: set[str] = set()
    hidden: set[int] = set()
    for number in range(6):
        boxes = read_kitti(tmp_path / f"label_2/{number:06d}.txt")
        with Image.open(tmp_path / f"image_2/{number:06d}.png") as picture:
            assert picture.size == (1242, 375)
        assert (boxes.sides >= 0).all()
        assert (boxes.sides <= [1242, 375, 1242, 375]).all()
        assert (boxes.widths_px > 0).all()
        labels.update(boxes.labels.tolist())
        difficulties |= _counted(boxes)
        hidden |= set(boxes.occluded[boxes.labels == CAR].tolist())
    assert {"Car", "DontCare"} < labels.keys()
    assert difficulties == set(DIFFICULTIES)
    assert hidden == {0, 1, 2}


def test_the_same_seed_draws_the_same_picture_at_any_size_the_same_street() -> None:
    one, again, other = (draw_street(seed, 3, _SMALL) for seed in (7, 7, 8))
    assert np.array_equal(one.pixels, again.pixels)
    assert one.lines == again.lines
    assert not np.array_equal(one.pixels, other.pixels)
    assert one.pixels.shape == (*_SMALL, 3)


def _car(place: tuple[float, float], turn: float = 0.0) -> Thing:
    car = next(
        each for number in range(20) for each in furnish(np.random.default_rng(number)) if each.label == CAR
    )
    return Thing(CAR, car.faces, place, turn, car.extents)


def test_a_box_is_as_large_as_its_object_is_seen() -> None:
    car = _car((0.0, 20.0))
    seen = _see(car, (375, 1242))
    assert seen is not None
    left, top, right, bottom = seen.sides
    height, width, length = car.extents
    nearest_m = 20.0 - width / 2
    assert abs((right - left) - 721.5 * length / nearest_m) < 3
    assert abs(bottom - (172.9 + 721.5 * 1.65 / nearest_m)) < 3
    assert 0.85 < (bottom - top) / (721.5 * height / nearest_m) < 1.1


def test_what_others_hide_or_the_border_cuts_is_told() -> None:
    near, far, cut = _car((0.6, 10.0)), _car((0.0, 20.0)), _car((9.0, 9.0))
    size = (375, 1242)
    seen = [_see(each, size) for each in (far, near, cut)]
    kept = [each for each in seen if each is not None]
    ids = np.zeros(size, np.uint8)
    for index, each in enumerate(kept, start=1):
        left, top, right, bottom = np.clip(each.sides, 0, [1242, 375, 1242, 375]).astype(int)
        ids[top:bottom, left:right] = index
    rows = [line.split() for line in _label_lines(kept, ids, size)]
    assert float(rows[0][1]) > 0.2  # of the one that is cut
    assert float(rows[1][1]) == 0
    assert rows[1][2] == "0"
    assert rows[2][0] == "DontCare" or rows[2][2] in ("1", "2")
    assert _see(_car((0.0, 0.5)), size) is None
    assert _see(_car((90.0, 9.0)), size) is None
