"""One class for a picture goes with it unchanged."""

from __future__ import annotations

from outsize.data.sample import IGNORE, Target
from outsize.data.targets.one_class import OneClass
from outsize.tiles.window import Window


def test_no_change_of_the_pixels_changes_the_class() -> None:
    target: Target = OneClass(3)
    assert target.flip() == target.turn(1) == target.resize((9, 9)) == target


def test_pictures_of_a_batch_are_counted_and_parted() -> None:
    targets = [OneClass(number) for number in (2, 0, IGNORE)]
    assert [each.count(3).tolist() for each in targets] == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    batch = targets[0].stack(targets)
    assert len(batch) == 3
    assert batch.part(slice(1, 3)).classes.tolist() == [0, IGNORE]
    assert batch.crop(Window(0, 0, 4, 4), Window(0, 0, 2, 2)).classes.tolist() == [2, 0, IGNORE]
