"""What two tiles saw of one object becomes one object."""

from __future__ import annotations

import numpy as np

from outsize.data.object import Object
from outsize.tasks.instances.finding.seams import see, settle
from outsize.tiles.window import Tile, Window

SCENE = Window(0, 0, 100, 200)
LEFT = Tile(0, Window(0, 0, 100, 100), Window(0, 0, 100, 120))
RIGHT = Tile(1, Window(0, 100, 100, 100), Window(0, 80, 100, 120))


def block(row: int, col: int, height: int, width: int, score: float = 0.9, class_id: int = 0) -> Object:
    return Object(class_id, Window(row, col, height, width), np.ones((height, width), np.bool_), score)


def windows(*seen: tuple[Tile, Object]) -> list[tuple[Window, float]]:
    sightings = [each for tile, one in seen for each in see([one], tile, SCENE)]
    assert [each.window for each in settle(sightings)] == [each.window for each in settle(sightings[::-1])]
    return [(each.window, each.score) for each in settle(sightings)]


def test_an_object_on_the_seam_is_that_of_the_tile_with_its_middle() -> None:
    assert windows((LEFT, block(10, 92, 10, 12, 0.88)), (RIGHT, block(10, 11, 10, 13, 0.92))) == [
        (Window(10, 92, 10, 12), 0.88)
    ]
    # unless it is much less sure
    assert windows((LEFT, block(10, 92, 10, 12, 0.3)), (RIGHT, block(10, 11, 10, 13, 0.9))) == [
        (Window(10, 91, 10, 13), 0.9)
    ]


def test_an_object_outside_of_the_core_is_another_tiles_matter() -> None:
    assert windows((LEFT, block(10, 105, 5, 5))) == []


def test_a_part_gives_way_to_the_whole() -> None:
    assert windows((LEFT, block(10, 95, 10, 25, 0.99)), (RIGHT, block(10, 15, 10, 40, 0.7))) == [
        (Window(10, 95, 10, 40), 0.7)
    ]


def test_parts_of_what_no_tile_saw_whole_are_joined() -> None:
    assert windows((LEFT, block(10, 60, 10, 60, 0.7)), (RIGHT, block(10, 0, 10, 70, 0.8))) == [
        (Window(10, 60, 10, 90), 0.8)
    ]


def test_a_guess_does_not_change_what_is_sure() -> None:
    seen = [(LEFT, block(10, 60, 10, 60, 0.8)), (RIGHT, block(8, 0, 14, 70, 0.1))]
    sightings = [each for tile, one in seen for each in see([one], tile, SCENE)]
    assert [each.window for each in settle(sightings, sure=0.5)] == [Window(10, 60, 10, 60)]
    assert len(settle(sightings)) == 1
    assert settle(sightings)[0].window == Window(8, 60, 14, 90)


def test_neighbours_stay_apart() -> None:
    assert len(windows((LEFT, block(10, 90, 10, 12)), (RIGHT, block(21, 12, 10, 12)))) == 2


def test_one_object_of_two_opinions_is_one() -> None:
    both = windows((LEFT, block(10, 92, 10, 12)), (RIGHT, block(10, 12, 10, 12, class_id=1)))
    assert both == [(Window(10, 92, 10, 12), 0.9)]


def test_the_border_of_the_scene_cuts_nothing() -> None:
    assert not see([block(0, 0, 10, 10)], LEFT, SCENE)[0].is_cut
    assert see([block(0, 90, 10, 30)], LEFT, SCENE)[0].is_cut


def test_nothing_seen_is_nothing() -> None:
    assert settle([]) == ()
